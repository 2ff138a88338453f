// Every method of model.peft against the network without it, against its merged weights and against
// the change of the loss along its gradients.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

struct Method {
  const char* name;
  std::function<void(PeftSpec&)> change;
};

std::vector<Method> Methods() {
  return {
      {"lora with patterns",
       [](PeftSpec& spec) {
         spec.target_modules = {"all-linear"};
         spec.rank_pattern = {{".*proj", 3}};
         spec.alpha_pattern = {{".*c_fc", 2}, {".*up_proj", 2}};
         spec.loraplus_lr_ratio = 4;
       }},
      {"lora and norms",
       [](PeftSpec& spec) {
         spec.modules_to_save = {"ln_f", "norm", "*ln_1*", "*layernorm*"};
       }},
      {"dora",
       [](PeftSpec& spec) {
         spec.target_modules = {"all-linear"};
         spec.use_dora = true;
       }},
      {"dora with dropout",
       [](PeftSpec& spec) {
         spec.target_modules = {"all-linear"};
         spec.use_dora = true;
         spec.dropout = 0.3;
       }},
      {"pissa",
       [](PeftSpec& spec) {
         spec.target_modules = {"all-linear"};
         spec.init = "pissa";
       }},
      {"olora",
       [](PeftSpec& spec) {
         spec.target_modules = {"all-linear"};
         spec.init = "olora";
       }},
      {"adalora",
       [](PeftSpec& spec) {
         spec.method = "adalora";
         spec.rank = 8;
         spec.target_modules = {"all-linear"};
         spec.adalora.init_r = 4;
         spec.adalora.target_r = 3;
       }},
      {"loha",
       [](PeftSpec& spec) {
         spec.method = "loha";
         spec.target_modules = {"all-linear"};
         spec.rank_pattern = {{".*proj", 3}};
       }},
      {"lokr",
       [](PeftSpec& spec) {
         spec.method = "lokr";
         spec.target_modules = {"all-linear"};
       }},
      {"lokr with small factors",
       [](PeftSpec& spec) {
         spec.method = "lokr";
         spec.rank = 1;
         spec.decompose_both = true;
       }},
      {"oft",
       [](PeftSpec& spec) {
         spec.method = "oft";
         spec.target_modules = {"all-linear"};
         spec.oft_block_size = 8;
       }},
      {"vera",
       [](PeftSpec& spec) {
         spec.method = "vera";
         spec.rank = 6;
         spec.target_modules = {"all-linear"};
         spec.d_initial = 0.3;
       }},
      {"ia3", [](PeftSpec& spec) { spec.method = "ia3"; }},
      {"miss",
       [](PeftSpec& spec) {
         spec.method = "miss";
         spec.target_modules = {"all-linear"};
       }},
      {"selective",
       [](PeftSpec& spec) {
         spec.method = "selective";
         spec.modules_to_save = {"*.bias", "*norm.weight"};
       }},
  };
}

/// Names that a family lacks are left out.
JobSpec JobOf(const Method& method, const std::string& family) {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family;
  job.model.peft.method = "lora";
  job.model.peft.rank = 4;
  job.model.peft.alpha = 8;
  method.change(job.model.peft);
  PeftSpec& spec = job.model.peft;
  const auto lacks = [&](const std::string& module) {
    ModelSpec model = job.model;
    model.peft.modules_to_save = {module};
    const std::vector<ParameterInfo> parameters = PlainParametersOf(model);
    return std::none_of(parameters.begin(), parameters.end(),
                        [&](const ParameterInfo& each) { return IsSavedWhole(model, each.name); });
  };
  std::erase_if(spec.modules_to_save, lacks);
  std::erase_if(spec.alpha_pattern,
                [&](const auto& each) { return (each.first == ".*c_fc") != (family == "gpt2"); });
  job.optimizer.learning_rate = 1e-2;
  job.train.eval_sequences = 8;
  return job;
}

TEST(PeftMethodsTest, StartAsTheNetworkAndAreTheirMergedWeights) {
  auto batch = RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "peft_methods";
  for (const char* family : {"gpt2", "llama"}) {
    for (const Method& method : Methods()) {
      SCOPED_TRACE(std::string(family) + " " + method.name);
      const JobSpec job = JobOf(method, family);
      TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
      TinyRun plain(WithoutPeft(job.model), ModelOptionsOf(TinyPlan("fp32")));
      // Factors that are zero and scales that are one round nothing; DoRA divides by lengths, and
      // PiSSA and OLoRA take off what they add.
      const PeftSpec& spec = job.model.peft;
      if (spec.use_dora || spec.init != "default") {
        EXPECT_LT(Difference(Wide(run.Logits(*batch)), Wide(plain.Logits(*batch))), 1e-5);
      } else {
        EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
      }
      Perturb(run, 0.1);
      EXPECT_GT(Difference(Wide(run.Logits(*batch)), Wide(plain.Logits(*batch))), 1e-3);
      ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
      TinyRun merged(WithoutPeft(job.model), ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
      ASSERT_TRUE(merged.model->Pack(merged.context).ok());
      EXPECT_LT(Difference(Wide(run.Logits(*batch)), Wide(merged.Logits(*batch))), 1e-5);
    }
  }
}

TEST(PeftMethodsTest, TheLossChangesAsGradientsSay) {
  auto batch = RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* family : {"gpt2", "llama"}) {
    for (const Method& method : Methods()) {
      SCOPED_TRACE(std::string(family) + " " + method.name);
      const JobSpec job = JobOf(method, family);
      TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
      Perturb(run, 0.1);
      const double loss = run.Differentiate(*batch);
      ParameterSet& parameters = run.model->parameters();
      int64_t checked = 0, trained = 0;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].frozen) continue;
        // Lengths of rows are taken for constants.
        if (job.model.peft.use_dora && parameters[i].shape.rank == 2) continue;
        const Doubles gradient = AsDoubles(parameters.gradient(i));
        double squares = 0;
        for (const double each : gradient) squares += each * each;
        const TensorView value = parameters.value(i);
        // As small as losses in f32 allow: networks this small are far from linear.
        const double rounding = 1e-6 * loss / (2 * squares);
        const double step = std::min(2e-2 / std::sqrt(squares), rounding / 0.01);
        const double noise = rounding / step;
        ++trained;
        if (!(noise < 0.05)) continue;
        ++checked;
        const auto moved = [&](double by) {
          for (size_t k = 0; k < gradient.size(); ++k) {
            value.As<float>()[k] += static_cast<float>(by * gradient[k]);
          }
          WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
          return run.Differentiate(*batch);
        };
        const double up = moved(step), down = moved(-2 * step);
        moved(step);
        const double slope = (up - down) / (2 * step);
        EXPECT_NEAR(slope / squares, 1, 0.05 + noise) << parameters[i].name << " at " << loss;
      }
      EXPECT_GT(checked, 1) << "of " << trained;
    }
  }
}

TEST(PeftMethodsTest, TrainWhatTheySayAlone) {
  CountingTokens tokens(7, 16);
  for (const char* family : {"gpt2", "llama"}) {
    for (const Method& method : Methods()) {
      SCOPED_TRACE(std::string(family) + " " + method.name);
      JobSpec job = JobOf(method, family);
      job.schedule.kind = "constant";
      TinyTraining run(job, TinyPlan("fp32"), tokens);
      const ParameterSet& parameters = run.model->parameters();
      const std::vector<std::vector<float>> before = ValuesOf(parameters);
      const double first = run.Step().loss;
      for (int i = 0; i < 25; ++i) run.Step();
      EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.005);
      const std::vector<std::vector<float>> after = ValuesOf(parameters);
      int64_t trained = 0;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        const bool own =
            (parameters[i].adapter != AdapterSide::kNone && !parameters[i].replicated) ||
            IsSavedWhole(job.model, parameters[i].name);
        EXPECT_EQ(parameters[i].frozen, !own) << parameters[i].name;
        if (own) {
          trained += parameters[i].shape.Elements();
        } else {
          EXPECT_EQ(after[at], before[at]) << parameters[i].name;
        }
      }
      EXPECT_EQ(ModelShape(job.model).trained, trained);
      EXPECT_EQ(parameters.ElementCount(), ModelShape(job.model).counts.Total());
    }
  }
}

TEST(PeftMethodsTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .zero_stage = 3},
      {.tensor = 2},
      {.data = 2, .zero_stage = 3, .tensor = 2, .sequence_parallel = true},
      {.data = 2, .zero_stage = 2, .tensor = 2, .sequence_parallel = true},
  };
  std::vector<Method> methods = Methods();
  methods.push_back({"lora with dropout", [](PeftSpec& spec) {
                       spec.target_modules = {"all-linear"};
                       spec.dropout = 0.3;
                     }});
  methods.push_back({"dora and biases", [](PeftSpec& spec) {
                       spec.target_modules = {"all-linear"};
                       spec.use_dora = true;
                       spec.modules_to_save = {"*.bias"};
                     }});
  methods.push_back({"ia3 everywhere", [](PeftSpec& spec) {
                       spec.method = "ia3";
                       spec.target_modules = {"all-linear"};
                       spec.modules_to_save = {"*.bias"};
                     }});
  for (size_t i = 0; i < methods.size(); ++i) {
    for (const bool llama : {false, true}) {
      const std::string family = llama ? "llama" : "gpt2";
      MeshCase c{JobOf(methods[i], family), TinyPlan("fp32", 2, 2)};
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.job.optimizer.learning_rate = 3e-3;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      // Every mesh has every method in one of the families, which has the next mesh in the other.
      const size_t first = (i + (llama ? 1 : 0)) % 2;
      for (size_t k = first; k < meshes.size(); k += 2) {
        SCOPED_TRACE(std::string(methods[i].name) + ", " + family + ", " + meshes[k].Description());
        ExpectFollows(TrainOnMesh(c.On(meshes[k])), whole, 2e-5, 1e-4);
      }
    }
  }
}

// What is gathered is rounded as products read it, and merged weights are made of that.
TEST(PeftMethodsTest, ShardedParametersFollowOneRankInBf16) {
  for (const char* precision : {"bf16", "bf16_pure"}) {
    for (const Method& method : Methods()) {
      MeshCase c{JobOf(method, "llama"), TinyPlan(precision, 2, 2)};
      SCOPED_TRACE(std::string(precision) + ", " + method.name);
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      c.plan.mesh.data = 2;
      c.plan.zero_stage = 3;
      c.plan.accumulation_steps = 1;
      for (const MeshOutcome& rank : TrainOnMesh(c)) {
        for (size_t step = 0; step < whole.reports.size(); ++step) {
          EXPECT_NEAR(rank.reports[step].loss, whole.reports[step].loss, 5e-3) << step;
        }
      }
    }
  }
}

TEST(PeftMethodsTest, DropoutIsRepeatableAndOfTrainingAlone) {
  CountingTokens tokens(7, 16);
  const auto losses = [&](double dropout, bool recompute) {
    JobSpec job = JobOf(Methods().front(), "gpt2");
    job.model.peft.dropout = dropout;
    Plan plan = TinyPlan("fp32", 2, 2);
    if (recompute) plan.block_memory_policy = {"recompute", "recompute"};
    TinyTraining run(job, plan, tokens);
    std::vector<double> all = {run.trainer->Evaluate()->loss};
    for (int i = 0; i < 4; ++i) all.push_back(run.Step().loss);
    return all;
  };
  const std::vector<double> dropped = losses(0.5, false), without = losses(0, false);
  EXPECT_EQ(dropped, losses(0.5, true));
  EXPECT_EQ(dropped[0], without[0]);
  EXPECT_NE(dropped, without);
}

TEST(PeftMethodsTest, BLearnsFasterByTheRatioOfLoraPlus) {
  JobSpec job = JobOf(Methods().front(), "gpt2");
  const TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const bool b = parameters[i].adapter == AdapterSide::kOutput;
    EXPECT_EQ(parameters[i].learning_rate_scale, b ? 4 : 1) << parameters[i].name;
  }
}

TEST(PeftMethodsTest, PissaTakesTheLargestSingularValues) {
  const JobSpec job = JobOf(Methods()[4], "llama");
  const TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adapter != AdapterSide::kInput) continue;
    // Nothing of the residual is along the factors.
    const int64_t weight = *parameters.Find(parameters[i].adapter_of);
    const int64_t out = parameters[weight].shape[0], in = parameters[weight].shape[1];
    const int64_t rank = parameters[i].shape[0];
    const Doubles residual = AsDoubles(parameters.value(weight));
    const Doubles a = AsDoubles(parameters.value(i)), b = AsDoubles(parameters.value(i + 1));
    const Doubles along = Times(residual, Transposed(a, rank, in), out, in, rank);
    const Doubles beside = Times(Transposed(b, out, rank), residual, rank, out, in);
    double most = 0;
    for (const double each : residual) most = std::max(most, std::fabs(each));
    for (const double each : along) EXPECT_LT(std::fabs(each), 1e-4 * most * std::sqrt(in));
    for (const double each : beside) EXPECT_LT(std::fabs(each), 1e-4 * most * std::sqrt(out));
  }
}

}  // namespace
}  // namespace weft::engine
