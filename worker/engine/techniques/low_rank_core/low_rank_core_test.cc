// Weights with a core of low rank, against the rules computed in float64.
#include "worker/engine/techniques/low_rank_core/low_rank_core.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;
using Doubles = std::vector<double>;

constexpr int64_t kRank = 6;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

JobSpec Job(int64_t core_every = 2) {
  JobSpec job = TinyJob(4);
  job.model.low_rank_core.rank = kRank;
  job.model.low_rank_core.core_every = core_every;
  job.train.eval_sequences = 8;
  return job;
}

ModelSpec Plain(ModelSpec model) {
  model.low_rank_core = {};
  return model;
}

Doubles AsDoubles(const TensorView& view) {
  const std::vector<float> values = ValuesOf(view);
  return {values.begin(), values.end()};
}

double Distance(const Doubles& a, const Doubles& b) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

/// U^T, V^T and M of a weight in float64.
struct Core {
  int64_t out, in;
  Doubles out_factor, in_factor, rest;

  Doubles Weight(bool whole) const {
    Doubles w = whole ? rest : Doubles(rest.size(), 0.0);
    for (int64_t k = 0; k < kRank; ++k) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          w[o * in + i] += out_factor[k * out + o] * in_factor[k * in + i];
        }
      }
    }
    return w;
  }

  std::vector<Doubles> Gradients(const Doubles& dw, bool whole) const {
    Doubles dout(out_factor.size(), 0.0), din(in_factor.size(), 0.0);
    for (int64_t k = 0; k < kRank; ++k) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          dout[k * out + o] += dw[o * in + i] * in_factor[k * in + i];
          din[k * in + i] += dw[o * in + i] * out_factor[k * out + o];
        }
      }
    }
    return {dout, din, whole ? dw : Doubles(rest.size(), 0.0)};
  }
};

Core CoreOf(const ParameterSet& parameters, int64_t index) {
  const int64_t first = parameters[index].first_source;
  return {parameters[index].shape[0], parameters[index].shape[1],
          AsDoubles(parameters.value(first)), AsDoubles(parameters.value(first + 1)),
          AsDoubles(parameters.value(first + 2))};
}

void Fill(const TensorView& view, PhiloxStream& random) {
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    for (int64_t e = 0; e < view.shape.Elements(); ++e) {
      view.As<T>()[e] = FromFloat<T>(static_cast<float>(random.Normal()));
    }
  });
}

TEST(LowRankCoreTest, MergedWeightsAndSplitGradientsAreThoseOfTheRules) {
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    SCOPED_TRACE(precision);
    TinyRun run(Job().model, ModelOptionsOf(TinyPlan(precision)));
    ParameterSet& parameters = run.model->parameters();
    PhiloxStream random(PhiloxKey{3, 0, 0});
    int64_t weights = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].derived()) continue;
      ++weights;
      for (int64_t k = 0; k < 3; ++k) {
        Fill(parameters.value(parameters[i].first_source + k), random);
      }
      Fill(parameters.gradient(i), random);
    }
    EXPECT_EQ(weights, 8);
    for (bool whole : {false, true}) {
      ASSERT_TRUE(MergeCores(run.context, parameters, whole).ok());
      ASSERT_TRUE(
          SplitCoreGradients(run.context, parameters, DerivedMatrices(parameters), whole).ok());
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].derived()) continue;
        const Core core = CoreOf(parameters, i);
        EXPECT_LT(Distance(AsDoubles(parameters.value(i)), core.Weight(whole)), 1e-6);
        const auto expected = core.Gradients(AsDoubles(parameters.gradient(i)), whole);
        for (size_t k = 0; k < expected.size(); ++k) {
          const int64_t source = parameters[i].first_source + static_cast<int64_t>(k);
          EXPECT_LT(Distance(AsDoubles(parameters.gradient(source)), expected[k]), 1e-6);
        }
      }
    }
    EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
  }
}

TEST(LowRankCoreTest, GradientsOfTheFactorsAreSlopesOfTheLoss) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (bool whole : {false, true}) {
    TinyRun run(Job().model, ModelOptionsOf(TinyPlan("fp32")));
    ParameterSet& parameters = run.model->parameters();
    const auto merge = [&] {
      ASSERT_TRUE(MergeCores(run.context, parameters, whole).ok());
      ASSERT_TRUE(run.model->Pack(run.context).ok());
    };
    merge();
    run.Differentiate(*batch);
    ASSERT_TRUE(
        SplitCoreGradients(run.context, parameters, DerivedMatrices(parameters), whole).ok());
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].source_of < 0) continue;
      const bool rest = parameters[i].name.ends_with(".rest");
      const TensorView value = parameters.value(i);
      const std::vector<float> start = ValuesOf(value);
      const Doubles gradient = AsDoubles(parameters.gradient(i));
      double norm = 0;
      for (double g : gradient) norm += g * g;
      norm = std::sqrt(norm);
      if (rest && !whole) {
        EXPECT_EQ(norm, 0);
        continue;
      }
      ASSERT_GT(norm, 0);
      constexpr double kStep = 2e-3;
      double loss[2];
      for (int side : {0, 1}) {
        for (size_t e = 0; e < start.size(); ++e) {
          value.As<float>()[e] =
              start[e] + static_cast<float>((side == 0 ? -kStep : kStep) * gradient[e] / norm);
        }
        merge();
        loss[side] = run.Loss(*batch);
      }
      std::copy(start.begin(), start.end(), value.As<float>());
      EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), norm, 0.02 * norm + 2e-3)
          << parameters[i].name;
    }
  }
}

// Steps of gradient descent with momentum and weight decay, computed in float64 from the gradients
// that the plain network has at the merged weights.
TEST(LowRankCoreTest, StepsTrainTheCoreAloneOrTheWhole) {
  RandomTokens tokens = TinyTokens();
  for (int64_t core_every : {1, 2, 3}) {
    SCOPED_TRACE(core_every);
    JobSpec job = Job(core_every);
    job.model.low_rank_core.layers = {"*.attn.c_attn.weight", "*.1.mlp.c_proj.weight"};
    job.optimizer.name = "sgd";
    job.optimizer.learning_rate = 0.3;
    job.optimizer.momentum = 0.9;
    job.optimizer.weight_decay = 0.01;
    job.train.gradient_clip_norm = 0;
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32", 2, 2), tokens);
    const ParameterSet& parameters = run.model->parameters();
    TinyRun plain(Plain(job.model), ModelOptionsOf(TinyPlan("fp32")));
    std::vector<Doubles> values, momentum;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      values.push_back(AsDoubles(parameters.value(i)));
      momentum.emplace_back(values.back().size(), 0.0);
    }
    const auto core_of = [&](int64_t i) {
      const int64_t first = parameters[i].first_source;
      return Core{parameters[i].shape[0], parameters[i].shape[1], values[first], values[first + 1],
                  values[first + 2]};
    };
    const auto move = [&](int64_t i, const Doubles& gradient) {
      const double decay = parameters[i].shape.rank > 1 ? 0.01 : 0;
      for (size_t e = 0; e < gradient.size(); ++e) {
        momentum[i][e] = 0.9 * momentum[i][e] + gradient[e] + decay * values[i][e];
        values[i][e] -= 0.3 * momentum[i][e];
      }
    };
    for (int64_t step = 0; step < 6; ++step) {
      const bool whole = step % core_every != core_every - 1;
      ParameterSet& network = plain.model->parameters();
      for (int64_t i = 0; i < network.size(); ++i) {
        ASSERT_EQ(network[i].name, parameters[i].name);
        const Doubles weight = parameters[i].derived() ? core_of(i).Weight(whole) : values[i];
        std::copy(weight.begin(), weight.end(), network.value(i).As<float>());
      }
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());
      auto batch = tokens.Get(step, 0, 4);
      ASSERT_TRUE(batch.ok());
      plain.Differentiate(*batch, 1.0f / static_cast<float>(batch->target_count));
      for (int64_t i = 0; i < network.size(); ++i) {
        const Doubles gradient = AsDoubles(network.gradient(i));
        if (!parameters[i].derived()) {
          move(i, gradient);
          continue;
        }
        const std::vector<Doubles> split = core_of(i).Gradients(gradient, whole);
        const int64_t first = parameters[i].first_source;
        move(first, split[0]);
        move(first + 1, split[1]);
        if (whole) move(first + 2, split[2]);
      }
      run.Step();
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].derived()) continue;
        EXPECT_LT(Distance(AsDoubles(parameters.value(i)), values[i]), 2e-5)
            << step << " " << parameters[i].name;
      }
    }
  }
}

/// All that is saved of the rests: values and states of the optimizer.
std::map<std::string, std::vector<uint8_t>> RestsOf(Trainer& trainer) {
  std::map<std::string, std::vector<uint8_t>> rests;
  for (const NamedTensor& tensor : trainer.StateTensors()) {
    if (tensor.name.find(".rest") == std::string::npos) continue;
    const auto* bytes = static_cast<const uint8_t*>(tensor.view.data);
    rests[tensor.name] = {bytes, bytes + tensor.view.Bytes()};
  }
  return rests;
}

TEST(LowRankCoreTest, StepsOfTheCoreLeaveRestsAndTheirMomentsAsTheyAre) {
  RandomTokens tokens = TinyTokens();
  for (const char* optimizer : {"sgd", "adam", "adamw", "lion"}) {
    for (const char* precision : {"fp32", "bf16_pure"}) {
      SCOPED_TRACE(std::string(optimizer) + " " + precision);
      JobSpec job = Job(3);
      job.optimizer.name = optimizer;
      job.optimizer.momentum = 0.9;
      job.optimizer.learning_rate = 1e-2;
      TinyTraining run(job, TinyPlan(precision), tokens);
      for (int64_t step = 0; step < 6; ++step) {
        const auto before = RestsOf(*run.trainer);
        ASSERT_GE(before.size(), 16);
        EXPECT_FALSE(run.Step().skipped);
        const auto after = RestsOf(*run.trainer);
        for (const auto& [name, bytes] : before) {
          EXPECT_EQ(after.at(name) == bytes, step % 3 == 2) << step << " " << name;
        }
      }
    }
  }
}

TEST(LowRankCoreTest, TheWholeStartsAsThePlainNetworkAndACoreAsTheNearestOfAnImportedOne) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "core";
  TinyRun plain(TinyModel(), ModelOptionsOf(TinyPlan("fp32")));
  ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *plain.model, {}).ok());
  for (bool imported : {false, true}) {
    TinyRun run(Job().model, ModelOptionsOf(TinyPlan("fp32")));
    if (imported) {
      ASSERT_TRUE(run.model->parameters().Initialize(7).ok());
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *run.model).ok());
      ASSERT_TRUE(run.model->Pack(run.context).ok());
    }
    const std::vector<float> logits = run.Logits(*batch), expected = plain.Logits(*batch);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-5);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].derived()) continue;
      const Core core = CoreOf(parameters, i);
      double squares = 0, whole = 0;
      for (double w : core.Weight(false)) squares += w * w;
      for (double w : core.Weight(true)) whole += w * w;
      EXPECT_GT(squares, 0.1 * whole);
      if (!imported) continue;
      // What is left of W has nothing in the space of the factors.
      for (int64_t k = 0; k < kRank; ++k) {
        for (int64_t o = 0; o < core.out; ++o) {
          double product = 0;
          for (int64_t c = 0; c < core.in; ++c) {
            product += core.rest[o * core.in + c] * core.in_factor[k * core.in + c];
          }
          EXPECT_NEAR(product, 0, 1e-5);
        }
      }
    }
  }
}

TEST(LowRankCoreTest, EvaluationMeasuresTheWholeAndTheCoreAndChangesNothing) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = Job();
  job.optimizer.learning_rate = 1e-2;
  TinyTraining run(job, TinyPlan("fp32"), tokens), other(job, TinyPlan("fp32"), tokens);
  for (int i = 0; i < 5; ++i) {
    run.Step();
    other.Step();
  }
  const EvaluationReport report = *run.trainer->Evaluate();
  EXPECT_EQ(run.trainer->Evaluate()->loss, report.loss);
  ASSERT_EQ(report.technique_metrics.size(), 1);
  const double core_loss = report.technique_metrics.at("core_eval_loss_nats");
  EXPECT_NE(core_loss, report.loss);

  // The plain network with these weights.
  for (bool whole : {false, true}) {
    TinyTraining plain({[&] {
                         JobSpec of = job;
                         of.model = Plain(job.model);
                         return of;
                       }()},
                       TinyPlan("fp32"), tokens);
    ParameterSet& network = plain.model->parameters();
    for (int64_t i = 0; i < network.size(); ++i) {
      const ParameterSet& parameters = run.model->parameters();
      const Doubles weight = parameters[i].derived() ? CoreOf(parameters, i).Weight(whole)
                                                     : AsDoubles(parameters.value(i));
      std::copy(weight.begin(), weight.end(), network.value(i).As<float>());
    }
    ASSERT_TRUE(plain.trainer->Restored({}).ok());
    EXPECT_NEAR(plain.trainer->Evaluate()->loss, whole ? report.loss : core_loss, 1e-5);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.Step().loss, other.Step().loss);
  EXPECT_EQ(run.Parameters(), other.Parameters());
}

TEST(LowRankCoreTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    for (int64_t before : {2, 3}) {
      SCOPED_TRACE(precision->name);
      const JobSpec job = Job();
      Plan plan = TinyPlan(std::string(precision->name), 2, 2);
      TinyTraining whole(job, plan, tokens);
      for (int64_t i = 0; i < before; ++i) whole.Step();
      plan.block_memory_policy = {"recompute", "recompute"};
      TinyTraining resumed(job, plan, tokens);
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

TEST(LowRankCoreTest, RanksAgreeWithOneRank) {
  constexpr int kRanks = 2;
  const JobSpec job = Job();
  RandomTokens alone = TinyTokens();
  TinyTraining one(job, TinyPlan("fp32", 2, 2), alone);
  for (int i = 0; i < 4; ++i) one.Step();
  std::vector<float> parameters[kRanks];
  RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
    RandomTokens tokens = TinyTokens();
    Plan plan = TinyPlan("fp32", 2, 1);
    plan.mesh.data = kRanks;
    TinyRun run(job.model, ModelOptionsOf(plan));
    DataParallel reducer(&group, &run.model->parameters(), 4096);
    auto trainer = Trainer::New(job, plan,
                                {.context = &run.context,
                                 .model = run.model.get(),
                                 .train = &tokens,
                                 .reducer = &reducer,
                                 .rank = group.rank()});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE((*trainer)->Step().ok());
    parameters[group.rank()] = run.Parameters();
  });
  EXPECT_EQ(parameters[1], parameters[0]);
  const std::vector<float> expected = one.Parameters();
  EXPECT_LT(Distance(Doubles(parameters[0].begin(), parameters[0].end()),
                     Doubles(expected.begin(), expected.end())),
            1e-3);
}

TEST(LowRankCoreTest, CountsItsOperationsOnceAStep) {
  RandomTokens tokens = TinyTokens();
  const JobSpec job = Job();
  TinyTraining run(job, TinyPlan("fp32", 1, 4), tokens);
  for (int i = 0; i < 2; ++i) {
    Profiler profiler;
    run.context.profiler = &profiler;
    run.Step();
    run.context.profiler = nullptr;
    if (i == 0) continue;  // It packs weights for its own forward pass, too.
    double flops = 0;
    for (const char* operation : {"merge weights", "split gradients"}) {
      flops += profiler.entries().at(operation).flops;
    }
    EXPECT_EQ(flops, StepWorkOf(ShapeOf(job), job.train).Flops());
  }
}

TEST(LowRankCoreTest, TheCoreAndTheWholeLearn) {
  CountingTokens tokens(7, 16);
  JobSpec job = Job();
  job.optimizer.learning_rate = 3e-3;
  job.schedule.kind = "constant";
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const EvaluationReport before = *run.trainer->Evaluate();
  for (int i = 0; i < 60; ++i) run.Step();
  const EvaluationReport after = *run.trainer->Evaluate();
  EXPECT_LT(after.loss, before.loss - 0.5);
  EXPECT_LT(after.technique_metrics.at("core_eval_loss_nats"),
            before.technique_metrics.at("core_eval_loss_nats") - 0.5);
}

TEST(LowRankCoreTest, RefusesWhatIsNoLowRankAndPatternsThatMatchNothing) {
  JobSpec job = Job();
  job.data.train = {"text.txt"};
  job.model.low_rank_core.rank = 32;
  EXPECT_THAT(ValidateJob(job).message(),
              HasSubstr("model.low_rank_core.rank 32 is no low rank for "
                        "transformer.h.0.attn.c_attn.weight [96, 32]; hint: at most 31"));
  job.model.low_rank_core = {.rank = 0, .layers = {"*"}};
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("model.low_rank_core needs a rank"));

  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ModelSpec model = Job().model;
  model.low_rank_core.rank = 32;
  EXPECT_THAT(NewModel(context, model, {}).status().message(), HasSubstr("hint: at most 31"));
  model = Job().model;
  model.low_rank_core.layers = {"transformer.h.1.mlp.c_fc.wieght"};
  EXPECT_THAT(NewModel(context, model, {}).status().message(),
              HasSubstr("did you mean 'transformer.h.1.mlp.c_fc.weight'?"));
}

}  // namespace
}  // namespace weft::engine
