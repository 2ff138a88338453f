// Weights trained as products and mixtures, against the rules computed in float64.
#include "worker/engine/techniques/over_parameterization/over_parameterization.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "common/rng.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/over_parameterization/testing.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr const char* kKinds[] = {"linear_expansion", "majority_kernels", "branches"};

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

JobSpec Job(const std::string& kind, double inner_ratio = 1.5) {
  JobSpec job = TinyJob(4);
  job.model.over_parameterization.kind = kind;
  job.model.over_parameterization.inner_ratio = inner_ratio;
  job.train.eval_sequences = 8;
  return job;
}

ModelSpec Plain(ModelSpec model) {
  model.over_parameterization = {};
  return model;
}

TEST(MixtureOf, IsAConvexCombinationThatNothingButItsKeyDecides) {
  Doubles mean(3, 0.0);
  double squares = 0;
  constexpr int kDraws = 4000;
  for (int step = 0; step < kDraws; ++step) {
    const std::vector<float> p = MixtureOf({7, step}, "w", 3);
    float sum = 0;
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_GE(p[k], 0);
      sum += p[k];
      mean[k] += p[k] / kDraws;
      squares += std::pow(p[k], 2) / kDraws;
    }
    EXPECT_EQ(sum, 1) << "exactly";
  }
  for (double m : mean) EXPECT_NEAR(m, 1.0 / 3, 0.015);
  EXPECT_NEAR(squares, 2.0 / 4, 0.015) << "of the flat Dirichlet distribution: 2 / (k + 1)";
  const std::vector<float> p = MixtureOf({7, 5}, "w", 4);
  EXPECT_EQ(p, MixtureOf({7, 5}, "w", 4));
  EXPECT_NE(p, MixtureOf({8, 5}, "w", 4));
  EXPECT_NE(p, MixtureOf({7, 6}, "w", 4));
  EXPECT_NE(p, MixtureOf({7, 5}, "v", 4));
}

TEST(OverParameterizationTest, MergedWeightsAndSplitGradientsAreThoseOfTheRules) {
  // Both sides of a weight may be the smaller one, and the inner size odd.
  for (const std::string kind : kKinds) {
    for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
      for (double ratio : {1.0, 1.03, 2.5}) {
        SCOPED_TRACE(kind + " " + precision);
        JobSpec job = Job(kind, ratio);
        TinyRun run(job.model, ModelOptionsOf(TinyPlan(precision)));
        ParameterSet& parameters = run.model->parameters();
        PhiloxStream random(PhiloxKey{3, 0, 0});
        int64_t weights = 0;
        for (int64_t i = 0; i < parameters.size(); ++i) {
          if (!parameters[i].derived()) continue;
          ++weights;
          for (int64_t k = 0; k < parameters[i].sources; ++k) {
            const TensorView factor = parameters.value(parameters[i].first_source + k);
            kernels::cpu::WithFloatType(factor.dtype, [&]<class T>() {
              for (int64_t e = 0; e < factor.shape.Elements(); ++e) {
                factor.As<T>()[e] = FromFloat<T>(static_cast<float>(random.Normal()));
              }
            });
          }
          float* gradient = parameters.gradient(i).As<float>();
          for (int64_t e = 0; e < parameters[i].shape.Elements(); ++e) {
            gradient[e] = static_cast<float>(random.Normal());
          }
        }
        EXPECT_EQ(weights, 8);
        const MixtureKey key{11, 3};
        for (bool training : {true, false}) {
          ASSERT_TRUE(MergeWeights(run.context, run.model->spec().over_parameterization, parameters,
                                   training ? &key : nullptr)
                          .ok());
          for (int64_t i = 0; i < parameters.size(); ++i) {
            if (!parameters[i].derived()) continue;
            EXPECT_EQ(parameters.value(i).dtype, DType::kF32);
            const Doubles p = training ? MixtureIn(parameters, i, 11, 3)
                                       : Doubles(parameters[i].sources, 1.0 / 3);
            EXPECT_LT(
                Distance(AsDoubles(parameters.value(i)), FactorsFrom(parameters, i).Weight(p)),
                1e-6);
          }
        }
        ASSERT_TRUE(SplitGradients(run.context, run.model->spec().over_parameterization, parameters,
                                   DerivedMatrices(parameters), key)
                        .ok());
        for (int64_t i = 0; i < parameters.size(); ++i) {
          if (!parameters[i].derived()) continue;
          const std::vector<Doubles> expected =
              FactorsFrom(parameters, i)
                  .Gradients(AsDoubles(parameters.gradient(i)), MixtureIn(parameters, i, 11, 3));
          for (size_t k = 0; k < expected.size(); ++k) {
            const int64_t factor = parameters[i].first_source + static_cast<int64_t>(k);
            EXPECT_LT(Distance(AsDoubles(parameters.gradient(factor)), expected[k]), 1e-6);
          }
        }
        EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
      }
    }
  }
}

TEST(OverParameterizationTest, GradientsOfFactorsAreSlopesOfTheLoss) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const std::string kind : kKinds) {
    SCOPED_TRACE(kind);
    TinyRun run(Job(kind).model, ModelOptionsOf(TinyPlan("fp32")));
    ParameterSet& parameters = run.model->parameters();
    const MixtureKey key{1, 4};
    const auto merge = [&] {
      ASSERT_TRUE(
          MergeWeights(run.context, run.model->spec().over_parameterization, parameters, &key)
              .ok());
      ASSERT_TRUE(run.model->Pack(run.context).ok());
    };
    PhiloxStream random(PhiloxKey{3, 0, 0});
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const TensorView value = parameters.value(i);
      for (int64_t e = 0; e < value.shape.Elements(); ++e) {
        value.As<float>()[e] += static_cast<float>(0.05 * random.Normal());
      }
    }
    merge();
    run.Differentiate(*batch);
    ASSERT_TRUE(SplitGradients(run.context, run.model->spec().over_parameterization, parameters,
                               DerivedMatrices(parameters), key)
                    .ok());
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].source_of < 0) continue;
      const TensorView value = parameters.value(i);
      const std::vector<float> start = ValuesOf(value);
      const Doubles gradient = AsDoubles(parameters.gradient(i));
      double norm = 0;
      for (double g : gradient) norm += g * g;
      norm = std::sqrt(norm);
      // Along the gradient the slope is its norm.
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
TEST(OverParameterizationTest, TrainsAsTheRulesSay) {
  RandomTokens tokens = TinyTokens();
  for (const std::string kind : kKinds) {
    SCOPED_TRACE(kind);
    JobSpec job = Job(kind);
    job.model.over_parameterization.layers = {"*.attn.c_attn.weight", "*.1.mlp.c_proj.weight"};
    job.optimizer.name = "sgd";
    job.optimizer.learning_rate = 0.5;
    job.optimizer.momentum = 0.9;
    job.optimizer.weight_decay = 0.01;
    job.train.gradient_clip_norm = 0;
    job.train.seed = 21;
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32", 2, 2), tokens);
    const ParameterSet& parameters = run.model->parameters();
    TinyRun plain(Plain(job.model), ModelOptionsOf(TinyPlan("fp32")));

    // By parameter of the expanded model; the plain one's come first and in the same order.
    std::vector<Doubles> values, momentum;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      values.push_back(AsDoubles(parameters.value(i)));
      momentum.emplace_back(values.back().size(), 0.0);
    }
    const auto factors_of = [&](int64_t i) {
      Factors factors = FactorsFrom(parameters, i);
      for (size_t k = 0; k < factors.values.size(); ++k) {
        factors.values[k] = values[parameters[i].first_source + static_cast<int64_t>(k)];
      }
      return factors;
    };
    const auto move = [&](int64_t i, const Doubles& gradient) {
      const double decay = parameters[i].shape.rank > 1 ? 0.01 : 0;
      for (size_t e = 0; e < gradient.size(); ++e) {
        momentum[i][e] = 0.9 * momentum[i][e] + gradient[e] + decay * values[i][e];
        values[i][e] -= 0.5 * momentum[i][e];
      }
    };
    for (int64_t step = 0; step < 6; ++step) {
      ParameterSet& network = plain.model->parameters();
      for (int64_t i = 0; i < network.size(); ++i) {
        ASSERT_EQ(network[i].name, parameters[i].name);
        Doubles weight = values[i];
        if (parameters[i].derived()) {
          weight = factors_of(i).Weight(MixtureIn(parameters, i, 21, step));
        }
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
        const std::vector<Doubles> split =
            factors_of(i).Gradients(gradient, MixtureIn(parameters, i, 21, step));
        for (size_t k = 0; k < split.size(); ++k) {
          move(parameters[i].first_source + static_cast<int64_t>(k), split[k]);
        }
      }
      run.Step();
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].derived()) continue;
        EXPECT_LT(Distance(AsDoubles(parameters.value(i)), values[i]), 2e-5)
            << step << " " << parameters[i].name;
      }
    }
    // The last tensor of branches is a scale, and the one before has started at zero.
    const int64_t last = parameters.size() - (kind == "branches" ? 2 : 1);
    EXPECT_GT(
        Distance(values[last], AsDoubles(TinyRun(job.model, {}).model->parameters().value(last))),
        1e-2)
        << "it has moved";
  }
}

TEST(OverParameterizationTest,
     ProductsAndBranchesStartAsThePlainNetworkAndMixturesWithItsVariance) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const ModelSpec& model : {Job("linear_expansion", 1.0).model,
                                 Job("linear_expansion", 2.0).model, Job("branches").model}) {
    TinyRun expanded(model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(Plain(model), ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_EQ(expanded.Logits(*batch), plain.Logits(*batch)) << "bit for bit";
  }
  const ModelSpec model = Job("majority_kernels").model;
  TinyRun mixed(model, ModelOptionsOf(TinyPlan("fp32")));
  TinyRun plain(Plain(model), ModelOptionsOf(TinyPlan("fp32")));
  const auto square = [](const TensorView& view) {
    double sum = 0;
    for (float v : ValuesOf(view)) sum += static_cast<double>(v) * v;
    return sum;
  };
  double mean = 0, expected = 0;
  for (int64_t step = 0; step < 40; ++step) {
    const MixtureKey key{1, step};
    const ParameterSet& parameters = mixed.model->parameters();
    ASSERT_TRUE(MergeWeights(mixed.context, model.over_parameterization, parameters, &key).ok());
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].derived()) continue;
      mean += square(parameters.value(i));
      expected += square(plain.model->parameters().value(i));
    }
  }
  EXPECT_NEAR(mean / expected, 1, 0.1);
}

/// Makes the weights of a step, or with a null `key` those of evaluation.
void Merge(TinyRun& run, const MixtureKey* key) {
  ASSERT_TRUE(MergeWeights(run.context, run.model->spec().over_parameterization,
                           run.model->parameters(), key)
                  .ok());
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

TEST(OverParameterizationTest, EqualCopiesGiveTheSameOutputWhateverTheirMixture) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  TinyRun run(Job("majority_kernels").model, ModelOptionsOf(TinyPlan("fp32")));
  // Between mixtures and the mean.
  const auto largest_difference = [&] {
    Merge(run, nullptr);
    const std::vector<float> mean = run.Logits(*batch);
    float largest = 0;
    for (int64_t step = 0; step < 5; ++step) {
      const MixtureKey key{1, step};
      Merge(run, &key);
      const std::vector<float> mixed = run.Logits(*batch);
      for (size_t i = 0; i < mean.size(); ++i) {
        largest = std::max(largest, std::abs(mixed[i] - mean[i]));
      }
    }
    return largest;
  };
  EXPECT_GT(largest_difference(), 1e-4f) << "of copies that differ";
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    for (int64_t k = 1; k < parameters[i].sources; ++k) {
      const TensorView first = parameters.value(parameters[i].first_source);
      std::copy_n(first.As<float>(), first.shape.Elements(),
                  parameters.value(parameters[i].first_source + k).As<float>());
    }
  }
  EXPECT_LT(largest_difference(), 1e-6f);
}

TEST(OverParameterizationTest, TheMeanOfTrainedCopiesLosesLessThanTheirMixtures) {
  JobSpec job = Job("majority_kernels");
  job.model.initializer_range = 0.1;
  job.optimizer.learning_rate = 1e-2;
  CountingTokens tokens(10, job.model.context);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const double first = run.Step().loss;
  for (int i = 0; i < 80; ++i) run.Step();
  EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.5);
  auto batch = tokens.Get(0, 0, 4);
  ASSERT_TRUE(batch.ok());
  constexpr int64_t kDraws = 20;
  double mixtures = 0;
  for (int64_t step = 0; step < kDraws; ++step) {
    const MixtureKey key{5, step};
    Merge(run, &key);
    mixtures += run.Loss(*batch) / kDraws;
  }
  Merge(run, nullptr);
  EXPECT_LT(run.Loss(*batch), mixtures);
}

TEST(OverParameterizationTest, TheExportOfMergedWeightsIsThePlainModelThatEvaluationSees) {
  RandomTokens tokens = TinyTokens();
  auto batch = tokens.Get(50, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "merged";
  for (const char* family : {"gpt2", "llama"}) {
    for (const std::string kind : kKinds) {
      SCOPED_TRACE(kind + " " + family);
      JobSpec job = Job(kind);
      job.model.family = family;
      job.optimizer.learning_rate = 1e-2;
      TinyTraining run(job, TinyPlan("fp32"), tokens);
      for (int i = 0; i < 5; ++i) run.Step();
      const double loss = run.trainer->Evaluate()->loss;  // packs the weights of evaluation
      const std::vector<float> logits = run.Logits(*batch);
      const Status status = ExportWeights(Env::Posix(), folder, *run.model, {});
      ASSERT_TRUE(status.ok()) << status.message();

      TinyRun plain(Plain(job.model), ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *plain.model).ok());
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());
      const std::vector<float> merged = plain.Logits(*batch);
      for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(merged[i], logits[i], 1e-5);

      // And such a folder can be gone on from, over-parameterised anew.
      TinyTraining again(job, TinyPlan("fp32"), tokens);
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *again.model).ok());
      ASSERT_TRUE(again.trainer->Restored({}).ok());
      EXPECT_NEAR(again.trainer->Evaluate()->loss, loss, 1e-5);
      const StepReport report = again.Step();
      EXPECT_FALSE(report.skipped);
    }
  }
}

TEST(OverParameterizationTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const std::string kind : kKinds) {
    for (const PrecisionRecipe* precision : AllPrecisions()) {
      SCOPED_TRACE(kind + " " + std::string(precision->name));
      const JobSpec job = Job(kind);
      Plan plan = TinyPlan(std::string(precision->name), 2, 2);
      TinyTraining whole(job, plan, tokens);
      for (int i = 0; i < 3; ++i) whole.Step();
      // Recomputation computes the same again.
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
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
        // An evaluation in between leaves nothing behind.
        if (i == 0) {
          ASSERT_TRUE(resumed.trainer->Evaluate().ok());
        }
      }
      EXPECT_EQ(resumed.trainer->Evaluate()->loss, whole.trainer->Evaluate()->loss);
      EXPECT_EQ(resumed.Parameters(), whole.Parameters());
    }
  }
}

TEST(OverParameterizationTest, RanksDrawTheSameMixturesAndAgreeWithOneRank) {
  constexpr int kRanks = 2;
  for (const std::string kind : kKinds) {
    SCOPED_TRACE(kind);
    JobSpec job = Job(kind);
    job.train.gradient_noise_scale = true;
    RandomTokens alone = TinyTokens();
    TinyTraining one(job, TinyPlan("fp32", 2, 2), alone);
    StepReport single;
    for (int i = 0; i < 4; ++i) single = one.Step();

    std::vector<float> parameters[kRanks];
    StepReport reports[kRanks];
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
      for (int i = 0; i < 4; ++i) {
        auto report = (*trainer)->Step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        reports[group.rank()] = *report;
      }
      parameters[group.rank()] = run.Parameters();
    });
    EXPECT_EQ(parameters[1], parameters[0]);
    EXPECT_NEAR(reports[0].loss, single.loss, 1e-5);
    EXPECT_NEAR(reports[0].gradient_norm, single.gradient_norm, 1e-4 * single.gradient_norm);
    const std::vector<float> expected = one.Parameters();
    EXPECT_LT(Distance(Doubles(parameters[0].begin(), parameters[0].end()),
                       Doubles(expected.begin(), expected.end())),
              1e-3);
  }
}

TEST(OverParameterizationTest, GoesWithEveryOptimizerAverageAndGroup) {
  CountingTokens tokens(7, 16);
  for (const std::string kind : kKinds) {
    for (const auto& [name, rate] : std::map<std::string, double>{{"sgd", 0.1},
                                                                  {"lars", 0.3},
                                                                  {"adam", 3e-3},
                                                                  {"adamw", 3e-3},
                                                                  {"lamb", 1e-2},
                                                                  {"lion", 3e-3},
                                                                  {"adafactor", 3e-2},
                                                                  {"muon", 3e-3},
                                                                  {"schedule_free_adamw", 3e-3}}) {
      for (const char* averaging : {"none", "ema", "lawa"}) {
        if (name == "schedule_free_adamw" && averaging != std::string("none")) continue;
        SCOPED_TRACE(kind + " " + name + " " + averaging);
        JobSpec job = Job(kind);
        job.optimizer.name = name;
        job.optimizer.learning_rate = rate;
        job.optimizer.groups = {{.parameters = {"*.0.attn.c_attn.weight"},
                                 .learning_rate_scale = 0,
                                 .weight_decay = {}}};
        job.optimizer.weight_decay = 0;
        job.train.averaging.kind = averaging;
        job.train.averaging.decay = 0.5;
        job.train.averaging.every_steps = 1;
        job.train.averaging.window = 3;
        job.schedule.kind = "constant";
        TinyTraining run(job, TinyPlan("fp32"), tokens);
        const ParameterSet& parameters = run.model->parameters();
        const int64_t held = parameters.Find("transformer.h.0.attn.c_attn.weight").value();
        std::vector<Doubles> before = FactorsFrom(parameters, held).values;
        const double first = run.Step().loss;
        for (int i = 0; i < 25; ++i) run.Step();
        EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.05);
        EXPECT_EQ(FactorsFrom(parameters, held).values, before)
            << "the name of the weight stands for its factors";
      }
    }
  }
}

TEST(OverParameterizationTest, CountsItsOperationsOnceAStep) {
  RandomTokens tokens = TinyTokens();
  for (const std::string kind : kKinds) {
    const JobSpec job = Job(kind);
    TinyTraining run(job, TinyPlan("fp32", 1, 4), tokens);
    run.Step();
    Profiler profiler;
    run.context.profiler = &profiler;
    run.Step();
    run.context.profiler = nullptr;
    double flops = 0;
    for (const char* operation : {"merge weights", "split gradients"}) {
      flops += profiler.entries().at(operation).flops;
    }
    EXPECT_EQ(flops, StepWorkOf(ShapeOf(job), job.train).Flops()) << kind;
  }
}

TEST(OverParameterizationTest, BranchesHaveAScaleForEachRowAndOneIsOfLowRank) {
  for (int64_t copies : {2, 4}) {
    JobSpec job = Job("branches");
    job.model.over_parameterization.copies = copies;
    TinyRun run(job.model, {});
    const ParameterSet& parameters = run.model->parameters();
    const int64_t weight = parameters.Find("transformer.h.0.mlp.c_fc.weight").value();
    const int64_t out = parameters[weight].shape[0], in = parameters[weight].shape[1];
    const int64_t first = parameters[weight].first_source;
    ASSERT_EQ(parameters[weight].sources, 2 * copies + 1);
    for (int64_t k = 0; k + 1 < copies; ++k) {
      EXPECT_EQ(parameters[first + 2 * k].shape, (Shape{out, in}));
      EXPECT_EQ(parameters[first + 2 * k + 1].shape, (Shape{out}));
      EXPECT_FALSE(parameters[first + 2 * k + 1].decay()) << "scales";
    }
    EXPECT_EQ(parameters[first + 2 * copies - 2].shape, (Shape{std::min(out, in) / 4, out}));
    EXPECT_EQ(parameters[first + 2 * copies - 1].shape, (Shape{std::min(out, in) / 4, in}));
  }
}

TEST(OverParameterizationTest, PatternsNameTrainedMatricesOfBlocksAlone) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return NewModel(context, model, {}).status().message();
  };
  ModelSpec model = Job("linear_expansion").model;
  model.over_parameterization.layers = {"*.mlp.c_fc.weight", "transformer.wte.weight"};
  EXPECT_THAT(refusal(model), HasSubstr("layers 'transformer.wte.weight' matches no trained"));
  model.over_parameterization.layers = {"transformer.h.1.mlp.c_fc.wieght"};
  EXPECT_THAT(refusal(model), HasSubstr("did you mean 'transformer.h.1.mlp.c_fc.weight'?"));
  model.over_parameterization.layers = {"*.0.mlp.c_fc.weight"};
  model.freeze = {"transformer.h.0.*"};
  EXPECT_THAT(refusal(model), HasSubstr("matches no trained"));

  // Those of frozen blocks are left as they are.
  model.over_parameterization.layers = {};
  TinyRun run(model, {});
  std::set<std::string> factored;
  for (int64_t i = 0; i < run.model->parameters().size(); ++i) {
    const Parameter& parameter = run.model->parameters()[i];
    if (parameter.derived()) factored.insert(parameter.name);
  }
  EXPECT_THAT(factored, ::testing::ElementsAre("transformer.h.1.attn.c_attn.weight",
                                               "transformer.h.1.attn.c_proj.weight",
                                               "transformer.h.1.mlp.c_fc.weight",
                                               "transformer.h.1.mlp.c_proj.weight"));
}

}  // namespace
}  // namespace weft::engine
