// The search for an Early-Bird ticket: coefficients against finite differences and rules written
// down again.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/optimizer_bytes.h"
#include "worker/engine/techniques/structured_pruning/coefficients.h"
#include "worker/engine/techniques/structured_pruning/structured_pruning_cost.h"
#include "worker/engine/techniques/structured_pruning/testing.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const std::string kMetric(kMaskDistanceMetric);

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

/// Names of the parameters that end with `suffix`.
std::vector<std::string> Named(const ParameterSet& parameters, const std::string& suffix) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (parameter.name.ends_with(suffix)) names.push_back(parameter.name);
  }
  return names;
}

std::map<std::string, std::vector<float>> StateOf(TinyTraining& run) {
  std::map<std::string, std::vector<float>> state;
  for (const NamedTensor& tensor : run.trainer->StateTensors()) {
    state[tensor.name] = ValuesOf(tensor.view);
  }
  return state;
}

TEST(StructuredPruningTest, UnitsAreHeadsThatShareKeysAndNeuronsInEights) {
  ModelSpec model;
  model.family = "llama";
  model.width = 768;
  model.heads = 12;
  model.kv_heads = 6;
  model.mlp_width = 3072;
  model.structured_pruning = {.method = "early_bird", .head_density = 2.0 / 3};
  const PrunedUnits heads = UnitsBefore(model, ParameterRole::kAttentionOutput);
  EXPECT_EQ(heads.count, 6);
  EXPECT_EQ(heads.kept, 4);
  EXPECT_EQ(heads.columns, 64);
  const PrunedUnits neurons = UnitsBefore(model, ParameterRole::kMlpDown);
  EXPECT_EQ(neurons.kept, 1840);  // 0.6 of 3072, in eights
  EXPECT_EQ(UnitsBefore(model, ParameterRole::kMlpUp).count, 0);
  const ModelSpec ticket = TicketModel(model);
  EXPECT_EQ(ticket.heads, 8);
  EXPECT_EQ(ticket.kv_heads, 4);
  EXPECT_EQ(ticket.head_width, 64);
  EXPECT_EQ(ticket.mlp_width, 1840);
  EXPECT_EQ(ticket.structured_pruning.method, "none");
  model.structured_pruning.head_density = 0.01;
  model.structured_pruning.neuron_density = 0.01;
  model.mlp_width = 100;
  EXPECT_EQ(UnitsBefore(model, ParameterRole::kAttentionOutput).kept, 1);
  EXPECT_EQ(UnitsBefore(model, ParameterRole::kMlpDown).kept, 8);
}

TEST(StructuredPruningTest, SettingsThatMeanNothingAreRefused) {
  JobSpec job = SearchJob("gpt2");
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.model.structured_pruning.head_density = 0.5;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("config.json has no head_dim"));
  job.model.structured_pruning.head_density = 1;
  job.model.structured_pruning.neuron_density = 1;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("keeps all heads and all neurons"));
  job.model.structured_pruning = {.interval = 7};
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("settings and no method"));
  job = SearchJob("gpt2");
  job.train.precision = "fp16";
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("does not go with train.precision fp16"));
  ModelSpec frozen = SearchJob("gpt2").model;
  frozen.freeze = {"*.h.0.*"};
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  EXPECT_THAT(NewModel(context, frozen, {}).status().message(),
              HasSubstr("model.freeze, which names transformer.h.0.mlp.c_proj.weight"));
}

TEST(StructuredPruningTest, ASearchStartsAsThePlainNetworkBitForBit) {
  const Batch batch = *TinyTokens().Get(0, 0, 2);
  for (const char* family : {"gpt2", "llama"}) {
    const ModelSpec model = SearchJob(family).model;
    ModelSpec plain = model;
    plain.structured_pruning = {};
    TinyRun search(model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun without(plain, ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_EQ(search.Logits(batch), without.Logits(batch)) << family;
  }
}

TEST(StructuredPruningTest, GradientsAreThoseOfFiniteDifferences) {
  const Batch batch = *TinyTokens().Get(0, 0, 4);
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    TinyRun run(SearchJob(family).model, ModelOptionsOf(TinyPlan("fp32")));
    ParameterSet& parameters = run.model->parameters();
    // Where coefficients differ from each other.
    PhiloxStream random({3, 0, 0});
    for (const std::string& name : Named(parameters, ".coefficients")) {
      const TensorView c = parameters.value(*parameters.Find(name));
      for (int64_t i = 0; i < c.shape[0]; ++i) {
        c.As<float>()[i] = 0.5f + UniformFloat(random.Next());
      }
    }
    const auto loss = [&] {
      WEFT_CHECK(MergeCoefficients(run.context, parameters).ok(), "merge");
      WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
      return run.Loss(batch);
    };
    loss();
    run.Differentiate(batch);
    ASSERT_TRUE(
        SplitCoefficientGradients(run.context, parameters, DerivedMatrices(parameters)).ok());
    for (const char* suffix : {".coefficients", ".unscaled"}) {
      const std::vector<std::string> names = Named(parameters, suffix);
      EXPECT_EQ(names.size(), family == std::string("llama") ? 4u : 2u);
      for (const std::string& name : names) {
        SCOPED_TRACE(name);
        const int64_t index = *parameters.Find(name);
        const std::vector<float> gradient = ValuesOf(parameters.gradient(index));
        // Along the gradient, so that rounding does not count.
        float* const value = parameters.value(index).As<float>();
        const std::vector<float> start(value, value + gradient.size());
        const double norm =
            std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
        ASSERT_GT(norm, 0);
        const double length = 0.02;
        const auto at = [&](double along) {
          for (size_t i = 0; i < gradient.size(); ++i) {
            value[i] = static_cast<float>(start[i] + along * gradient[i] / norm);
          }
          return loss();
        };
        const double slope = (at(length) - at(-length)) / (2 * length);
        std::copy(start.begin(), start.end(), value);
        EXPECT_NEAR(slope / norm, 1, 0.02);
        // Each alone, where there are few.
        for (size_t i = 0; i < gradient.size() && gradient.size() <= 4; ++i) {
          value[i] = start[i] + 0.05f;
          const double ahead = loss();
          value[i] = start[i] - 0.05f;
          const double behind = loss();
          value[i] = start[i];
          EXPECT_NEAR((ahead - behind) / 0.1, gradient[i], 0.02 * norm) << i;
        }
      }
    }
  }
}

TEST(StructuredPruningTest, ThePenaltyPullsEachCoefficientTowardsZero) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = SearchJob("llama");
  job.optimizer.name = "sgd";
  job.optimizer.momentum = 0;
  job.optimizer.learning_rate = 0.5;
  job.train.gradient_clip_norm = 0;
  job.schedule.kind = "constant";
  StructuredPruningSpec& spec = job.model.structured_pruning;
  spec.head_penalty = spec.neuron_penalty = 0;
  TinyTraining free(job, TinyPlan("fp32"), tokens);
  spec.head_penalty = 0.25;
  spec.neuron_penalty = 0.125;
  TinyTraining pulled(job, TinyPlan("fp32"), tokens);
  ParameterSet& parameters = pulled.model->parameters();
  // One is negative, and one zero.
  const int64_t first = *parameters.Find(Named(parameters, "o_proj.weight.coefficients")[0]);
  for (TinyTraining* run : {&free, &pulled}) {
    run->model->parameters().value(first).As<float>()[0] = -1;
    run->model->parameters().value(first).As<float>()[1] = 0;
    ASSERT_TRUE(run->trainer->Restored({}).ok());
    run->Step();
  }
  for (const std::string& name : Named(parameters, ".coefficients")) {
    const int64_t index = *parameters.Find(name);
    const std::vector<float> a = ValuesOf(free.model->parameters().value(index));
    const std::vector<float> b = ValuesOf(parameters.value(index));
    const float pull = 0.5f * (a.size() == 4 ? 0.25f : 0.125f);
    for (size_t i = 0; i < a.size(); ++i) {
      const float sign = index != first || i > 1 ? 1 : i == 0 ? -1 : 0;
      EXPECT_NEAR(b[i], a[i] - pull * sign, 1e-5) << name << " " << i;
    }
  }
}

TEST(StructuredPruningTest, ASearchEndsWhenItsMasksAreStable) {
  JobSpec job = SearchJob("llama");
  job.optimizer.learning_rate = 3e-3;
  job.train.steps = 400;
  StructuredPruningSpec& spec = job.model.structured_pruning;
  spec.interval = 5;
  spec.neuron_penalty = spec.head_penalty = 1e-3;
  CountingTokens tokens(7, job.model.context);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  std::vector<double> distances;
  std::map<std::string, std::vector<float>> before;
  while (!run.trainer->finished()) {
    const StepReport report = run.Step();
    const bool chosen = run.trainer->counters().step % spec.interval == 0;
    const bool first = run.trainer->counters().step == spec.interval;
    ASSERT_EQ(report.technique_metrics.contains(kMetric), chosen && !first);
    if (!chosen) continue;
    std::map<std::string, std::vector<float>> masks;
    for (auto& [name, values] : StateOf(run)) {
      if (name.ends_with("/mask")) masks[name] = std::move(values);
    }
    ASSERT_EQ(masks.size(), 4u);
    double heads = 0, neurons = 0;
    for (const auto& [name, mask] : masks) {
      const bool of_heads = mask.size() == 2;
      EXPECT_EQ(std::accumulate(mask.begin(), mask.end(), 0.0), of_heads ? 1 : 80) << name;
      for (size_t i = 0; i < mask.size() && !first; ++i) {
        if (mask[i] != before[name][i]) (of_heads ? heads : neurons) += 1;
      }
    }
    before = masks;
    if (first) continue;
    distances.push_back(report.technique_metrics.at(kMetric));
    EXPECT_NEAR(distances.back(), std::max(heads / 4, neurons / 256), 1e-12);
  }
  EXPECT_LT(run.trainer->counters().step, job.train.steps);
  ASSERT_GE(distances.size(), 5u);
  for (size_t i = distances.size() - 5; i < distances.size(); ++i) EXPECT_LT(distances[i], 0.1);
  const double early = distances[0];
  EXPECT_LT(distances.back(), early) << "masks settle";
  // Otherwise it ends with the last step, which has a mask whatever the interval.
  job.model.structured_pruning.mask_distance = 0;
  job.train.steps = 12;
  TinyTraining whole(job, TinyPlan("fp32"), tokens);
  StepReport last;
  while (!whole.trainer->finished()) last = whole.Step();
  EXPECT_EQ(whole.trainer->counters().step, 12);
  EXPECT_TRUE(last.technique_metrics.contains(kMetric));
}

TEST(StructuredPruningTest, TheFirstWeightsStayInTheState) {
  RandomTokens tokens = TinyTokens();
  const JobSpec job = SearchJob("gpt2");
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const auto start = StateOf(run);
  for (int i = 0; i < 3; ++i) run.Step();
  const auto state = StateOf(run);
  int64_t copies = 0;
  for (const Parameter& parameter : run.model->parameters()) {
    if (!parameter.updated()) continue;
    const StateName name = InitialWeights();
    EXPECT_EQ(state.at(name.prefix + parameter.name + name.suffix), start.at(parameter.name));
    ++copies;
  }
  EXPECT_EQ(copies, TrainedParameters(run.model->parameters()).size());
}

TEST(StructuredPruningTest, AResumedSearchGoesOnBitForBit) {
  RandomTokens tokens = TinyTokens();
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int64_t stop : {0, 1, 2, 5}) {
      SCOPED_TRACE(std::string(precision) + " " + std::to_string(stop));
      const JobSpec job = SearchJob("llama");
      TinyTraining original(job, TinyPlan(precision, 2, 2), tokens);
      for (int64_t i = 0; i < stop; ++i) original.Step();
      TinyTraining copy(job, TinyPlan(precision, 2, 2), tokens);
      for (int64_t i = 0; i < 3; ++i) copy.Step();  // forgotten
      const auto from = original.trainer->StateTensors();
      const auto to = copy.trainer->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(from[i].name, to[i].name);
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
      for (int64_t i = 0; i < 5; ++i) {
        const StepReport a = original.Step(), b = copy.Step();
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.technique_metrics, b.technique_metrics);
        if (i == 1) {
          ASSERT_TRUE(copy.trainer->Evaluate().ok());
        }
      }
      EXPECT_EQ(StateOf(original), StateOf(copy));
    }
  }
}

TEST(StructuredPruningTest, ThePlannerCountsItsMemoryAndItsWork) {
  JobSpec job = SearchJob("llama");
  job.model.width = 128;
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  TinyTraining run(job, TinyPlan("fp32", 4), tokens);
  run.Step();
  Profiler profiler;
  run.context.profiler = &profiler;
  const auto measured = static_cast<double>(run.Step().peak_memory.optimizer_bytes);
  run.context.profiler = nullptr;
  const auto predicted = static_cast<double>(OptimizerBytesOf(job.model, job, DType::kF32).state);
  EXPECT_GE(measured, predicted);
  EXPECT_LE(measured, 1.01 * predicted + 65536);
  double flops = 0;
  for (const char* operation : {"merge coefficients", "split gradients"}) {
    flops += profiler.entries().at(operation).flops;
  }
  EXPECT_EQ(flops, StepWorkOf(ShapeOf(job), job.train).Flops());
}

}  // namespace
}  // namespace weft::engine
