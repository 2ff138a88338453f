// Adapters of the table of tokens: LoRA besides it, and trained rows of it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/pipeline_shape.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/token_adapters_cost.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/saved_files.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string name;
  ModelSpec model;
};

/// Each adapter in networks whose classifier has the table, and others.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string family : {"gpt2", "llama", "bert"}) {
    for (const bool untied : {false, true}) {
      ModelSpec model = TinyModel();
      model.family = family;
      model.untied_classifier = untied;
      model.peft.rank = 3;
      model.peft.alpha = 6;
      const std::string name = family + (untied ? " untied " : " tied ");
      model.peft.method = "lora";
      model.peft.target_regex = R"(.*(wte|embed_tokens|word_embeddings|c_fc|down_proj|query))";
      cases.push_back({name + "lora", model});
      model.peft.target_regex = {};
      model.peft.trainable_token_indices = {9, 3, 4, 5, 49};
      for (int64_t token = 10; token < 45; ++token) {
        model.peft.trainable_token_indices.push_back(token);
      }
      cases.push_back({name + "tokens", model});
      model.peft.method = "selective";
      model.peft.rank = PeftSpec().rank;
      model.peft.alpha = PeftSpec().alpha;
      cases.push_back({name + "tokens alone", model});
    }
  }
  return cases;
}

JobSpec JobOf(const Case& c) {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model = c.model;
  job.schedule.kind = "constant";
  job.optimizer.learning_rate = 1e-2;
  return job;
}

Batch BatchOf(const ModelSpec& model) {
  const int64_t length = model.context;
  auto batch = model.family == "bert" ? RandomMasked(model.vocab_size, length, 0.3).Get(3, 0, 2)
                                      : RandomTokens(model.vocab_size, length).Get(3, 0, 2);
  WEFT_CHECK(batch.ok(), batch.status().message());
  return *batch;
}

/// The start of an index of the table's adapter, -1: none.
int64_t FirstAdapter(const ParameterSet& parameters) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adapter == AdapterSide::kNeither) return i;
  }
  return -1;
}

TEST(TokenAdaptersTest, StartAsTheNetworkAndAreTheirMergedWeights) {
  const std::string folder = ::testing::TempDir() + "token_adapters";
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Batch batch = BatchOf(c.model);
    TinyRun run(c.model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(WithoutPeft(c.model), ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_LT(Difference(Wide(run.Logits(batch)), Wide(plain.Logits(batch))), 1e-6);
    Perturb(run, 0.1);
    EXPECT_GT(Difference(Wide(run.Logits(batch)), Wide(plain.Logits(batch))), 1e-3);
    const Status exported = ExportWeights(Env::Posix(), folder, *run.model, {});
    if (!MergesTokenAdapter(c.model)) {
      EXPECT_THAT(exported.message(), HasSubstr("there are no weights of the network that do"));
      continue;
    }
    ASSERT_TRUE(exported.ok()) << exported.message();
    TinyRun merged(WithoutPeft(c.model), ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
    ASSERT_TRUE(merged.model->Pack(merged.context).ok());
    EXPECT_LT(Difference(Wide(run.Logits(batch)), Wide(merged.Logits(batch))), 1e-5);
  }
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST(TokenAdaptersTest, TheLossChangesAsGradientsSay) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Batch batch = BatchOf(c.model);
    TinyRun run(c.model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    const double loss = run.Differentiate(batch);
    EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Differentiate(batch); }), 0);
    // Those of the table are among them.
    const ParameterSet& parameters = run.model->parameters();
    const int64_t first = FirstAdapter(parameters);
    ASSERT_GE(first, 0);
    EXPECT_GT(Difference(AsDoubles(parameters.gradient(first)),
                         Doubles(parameters[first].shape.Elements(), 0.0)),
              1);
  }
}

TEST(TokenAdaptersTest, ParametersAreThoseThatAreCounted) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<ParameterInfo> counted = ParametersOf(c.model);
    const TinyRun run(c.model, ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    ASSERT_EQ(parameters.size(), std::ssize(counted));
    for (const ParameterInfo& info : counted) {
      const auto index = parameters.Find(info.name);
      ASSERT_TRUE(index.ok()) << info.name;
      const Parameter& parameter = parameters[*index];
      EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
      EXPECT_EQ(parameter.unit, info.unit) << info.name;
      EXPECT_EQ(parameter.adapter_of, info.adapter_of) << info.name;
      EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
    }
  }
}

TEST(TokenAdaptersTest, StagesOfAPipelineHaveThoseThatAreCounted) {
  for (const Case& c : Cases()) {
    if (c.model.family == "bert") continue;
    SCOPED_TRACE(c.name);
    const ModelShape whole(c.model);
    for (int64_t stage = 0; stage < 2; ++stage) {
      ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
      options.pipeline = PipelinePart{{{stage, 1}}, stage == 0, stage == 1};
      const TinyRun run(c.model, options);
      int64_t stored = 0, trained = 0;
      for (const Parameter& parameter : run.model->parameters()) {
        stored += parameter.StoredElements();
        if (parameter.trainable()) trained += parameter.StoredElements();
      }
      const ModelShape counted = ShapeOfStage(whole, {1, 1}, stage);
      EXPECT_EQ(counted.stored, stored) << stage;
      EXPECT_EQ(counted.stored_trained, trained) << stage;
    }
  }
}

TEST(TokenAdaptersTest, TrainThemAloneWhateverIsRecomputed) {
  CountingTokens tokens(7, 16);
  for (const Case& c : Cases()) {
    if (c.model.family == "bert") continue;
    SCOPED_TRACE(c.name);
    const JobSpec job = JobOf(c);
    std::vector<double> losses[2];
    for (const bool recompute : {false, true}) {
      Plan plan = TinyPlan("fp32", 2, 2);
      if (recompute) plan.block_memory_policy = {"recompute", "recompute"};
      TinyTraining run(job, plan, tokens);
      const ParameterSet& parameters = run.model->parameters();
      const std::vector<std::vector<float>> before = ValuesOf(parameters);
      for (int i = 0; i < 8; ++i) losses[recompute].push_back(run.Step().loss);
      ASSERT_TRUE(run.model->Pack(run.context).ok());
      const std::vector<std::vector<float>> after = ValuesOf(parameters);
      const int64_t width = c.model.width;
      int64_t trained = 0;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        if (!parameters[i].frozen) {
          trained += parameters[i].shape.Elements();
          EXPECT_NE(after[at], before[at]) << parameters[i].name;
        } else if (parameters[i].role != ParameterRole::kTokenEmbedding) {
          EXPECT_EQ(after[at], before[at]) << parameters[i].name;
        } else {
          for (int64_t row = 0; row < c.model.vocab_size; ++row) {
            const auto& rows = c.model.peft.trainable_token_indices;
            const bool own = std::find(rows.begin(), rows.end(), row) != rows.end();
            const bool same =
                std::equal(before[at].begin() + row * width, before[at].begin() + (row + 1) * width,
                           after[at].begin() + row * width);
            // CountingTokens has seven tokens; decay changes the others, too.
            EXPECT_EQ(same, !own) << row;
          }
        }
      }
      EXPECT_EQ(ModelShape(job.model).trained, trained);
      EXPECT_EQ(parameters.ElementCount(), ModelShape(job.model).counts.Total());
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_LT(losses[0].back(), losses[0].front());
  }
}

TEST(TokenAdaptersTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  for (const Case& c : Cases()) {
    if (!c.name.starts_with("gpt2 tied")) continue;
    for (const PrecisionRecipe* precision : AllPrecisions()) {
      SCOPED_TRACE(c.name + " " + std::string(precision->name));
      const Plan plan = TinyPlan(std::string(precision->name), 2, 2);
      TinyTraining whole(JobOf(c), plan, tokens);
      for (int i = 0; i < 3; ++i) whole.Step();
      TinyTraining resumed(JobOf(c), plan, tokens);
      ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
      const std::vector<NamedTensor> from = whole.trainer->StateTensors();
      const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(from[i].name, to[i].name);
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
      for (int i = 0; i < 3; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
      EXPECT_EQ(resumed.Parameters(), whole.Parameters());
    }
  }
}

TEST(TokenAdaptersTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .zero_stage = 1},
      {.data = 2, .zero_stage = 2},
      {.context = 2},
      {.tensor = 2},
      {.data = 2, .zero_stage = 1, .tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
      {.pipeline = 4, .pipeline_schedule = "zero_bubble"},
      {.data = 2,
       .zero_stage = 1,
       .pipeline = 2,
       .pipeline_schedule = "interleaved",
       .pipeline_chunks = 2},
      {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .pipeline_schedule = "gpipe"},
      {.pipeline = 2, .context = 2},
      {.data = 2, .zero_stage = 3},
      {.data = 2, .zero_stage = 3, .tensor = 2},
  };
  const std::vector<Case> cases = Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    if (c.model.family == "bert") continue;
    MeshCase one{JobOf(c), TinyPlan("fp32", 2, 4)};
    one.job.model.layers = 4;
    one.job.train.global_batch = 8;
    one.job.train.steps = 3;
    one.job.train.log_every_steps = 2;
    one.plan.bucket_bytes = 4000;
    const MeshOutcome whole = TrainOnMesh(one).front();
    // Every mesh has every adapter with both kinds of classifiers, each in one of the families.
    const size_t first = (i + (c.model.family == "llama" ? 1 : 0)) % 2;
    for (size_t k = first; k < meshes.size(); k += 2) {
      SCOPED_TRACE(c.name + " " + meshes[k].Description());
      ExpectFollows(TrainOnMesh(one.On(meshes[k])), whole, 2e-5, 1e-4);
    }
  }
}

// The same ranks bit for bit, others up to rounding.
TEST(TokenAdaptersTest, RanksWithShardedParametersGoOnFromACheckpoint) {
  for (const Case& c : Cases()) {
    if (c.model.family == "bert" || !c.name.ends_with("tokens")) continue;
    MeshCase two{JobOf(c), TinyPlan("fp32", 2, 1)};
    two.plan.mesh.data = 2;
    two.plan.zero_stage = 3;
    two.plan.bucket_bytes = 4000;
    MeshCase four = two;
    four.plan.mesh.tensor = 2;
    const auto on_ranks = [](const MeshCase& meshes, const auto& run) {
      RunRanks(static_cast<int>(meshes.ranks()), std::chrono::seconds(60), [&](Collective& world) {
        MeshRank rank(meshes, world);
        run(rank, world);
      });
    };
    const auto losses_of = [](Trainer& trainer, int steps) {
      std::vector<double> losses;
      for (int i = 0; i < steps; ++i) {
        const auto report = trainer.Step();
        WEFT_CHECK(report.ok(), report.status().message());
        losses.push_back(report->loss);
      }
      return losses;
    };
    SavedFiles files;
    TrainCounters counters;
    std::vector<double> losses;
    on_ranks(two, [&](MeshRank& rank, Collective& world) {
      losses_of(*rank.trainer, 3);
      files.Write(*rank.trainer, world);
      const TrainCounters saved = rank.trainer->counters();
      const std::vector<double> next = losses_of(*rank.trainer, 2);
      if (world.rank() > 0) return;
      counters = saved;
      losses = next;
    });
    for (const MeshCase* meshes : {&two, &four}) {
      SCOPED_TRACE(c.name + (meshes == &two ? "" : ", also tensor-parallel"));
      on_ranks(*meshes, [&](MeshRank& rank, Collective&) {
        ASSERT_TRUE(rank.run.model->parameters().Initialize(99).ok());
        const Status status = files.Read(*rank.trainer);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(rank.trainer->Restored(counters).ok());
        const std::vector<double> next = losses_of(*rank.trainer, 2);
        const double off = meshes == &two ? 0 : 2e-5;
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(next[i], losses[i], off) << i;
      });
    }
  }
}

TEST(TokenAdaptersTest, NameWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const auto& change) {
    ModelSpec model = TinyModel();
    model.peft.method = "lora";
    change(model.peft);
    return std::string(NewModel(context, model, {}).status().message());
  };
  const auto of_table = [&](const auto& change) {
    return refusal([&](PeftSpec& spec) {
      spec.target_modules = {"wte"};
      change(spec);
    });
  };
  EXPECT_EQ(of_table([](PeftSpec&) {}), "");
  EXPECT_THAT(of_table([](PeftSpec& spec) { spec.use_dora = true; }),
              HasSubstr("names the token embedding transformer.wte with use_dora"));
  EXPECT_THAT(of_table([](PeftSpec& spec) { spec.layers_to_transform = {0}; }),
              HasSubstr("leave layers_to_transform out"));
  EXPECT_THAT(of_table([](PeftSpec& spec) { spec.trainable_token_indices = {1}; }),
              HasSubstr("which are rows of it; hint: one of the two"));
  EXPECT_THAT(of_table([](PeftSpec& spec) { spec.method = "loha"; }),
              HasSubstr("'wte' names no linear layer of a block"));
  EXPECT_THAT(refusal([](PeftSpec& spec) {
                spec.trainable_token_indices = {1, 50};
              }),
              HasSubstr("has 50, which is no token from 0 to 49; hint: a row of"));
  EXPECT_THAT(refusal([](PeftSpec& spec) {
                spec.trainable_token_indices = {1, 1};
              }),
              HasSubstr("has 1 twice; hint: each token once"));
  EXPECT_THAT(refusal([](PeftSpec& spec) {
                spec.trainable_token_indices = {1};
                spec.modules_to_save = {"wte"};
              }),
              HasSubstr("which modules_to_save trains whole; hint: one of the two"));
  EXPECT_THAT(refusal([](PeftSpec& spec) {
                spec.trainable_token_indices = {1};
                spec.method = "ia3";
              }),
              HasSubstr("with method ia3; hint: model.peft.method lora or selective"));
}

}  // namespace
}  // namespace weft::engine
