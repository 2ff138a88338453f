// Low-rank adapters of sparse weights, which the last steps train with everything else.
#include "worker/engine/techniques/sparse24/lazy_adapters.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/rng.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 10, kFirst = 6;

JobSpec Job(const std::string& family = "gpt2", int64_t rank = 3) {
  JobSpec job = TinyJob(4);
  job.model.family = family;
  job.train.steps = kSteps;
  job.train.sparsity = {.method = "slope", .adapter_rank = rank, .adapter_share = 0.4};
  job.train.eval_sequences = 8;
  job.optimizer.learning_rate = 1e-2;
  job.schedule.kind = "constant";
  return job;
}

JobSpec WithoutAdapters(JobSpec job) {
  job.train.sparsity.adapter_rank = 0;
  job.train.sparsity.adapter_share = SparsitySpec().adapter_share;
  return job;
}

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

std::vector<int64_t> AdaptersIn(const ParameterSet& parameters, AdapterSide side) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adapter == side) indices.push_back(i);
  }
  return indices;
}

double SumOfSquares(const TensorView& view) {
  double sum = 0;
  for (const float value : ValuesOf(view)) sum += double{value} * value;
  return sum;
}

TEST(LazyAdapters, StepsBeforeTheirsAreThoseWithoutThem) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(family) + " " + precision);
      RandomTokens tokens = TinyTokens();
      JobSpec job = Job(family);
      job.train.gradient_clip_norm = 0;  // Norms are sums over more tensors.
      TinyTraining run(job, TinyPlan(precision, 2, 2), tokens);
      TinyTraining plain(WithoutAdapters(job), TinyPlan(precision, 2, 2), tokens);
      const ParameterSet& parameters = run.model->parameters();
      const auto first = AdaptersIn(parameters, AdapterSide::kInput);
      const auto second = AdaptersIn(parameters, AdapterSide::kOutput);
      EXPECT_EQ(first.size(), family == std::string("gpt2") ? 4 : 6);
      std::vector<std::vector<float>> starts;
      for (const int64_t i : first) starts.push_back(ValuesOf(parameters.value(i)));
      const auto expect_still = [&] {
        for (size_t k = 0; k < first.size(); ++k) {
          EXPECT_EQ(ValuesOf(parameters.value(first[k])), starts[k]);
          EXPECT_GT(SumOfSquares(parameters.value(first[k])), 0);
          EXPECT_EQ(SumOfSquares(parameters.value(second[k])), 0);
        }
      };
      for (int64_t step = 0; step < kFirst; ++step) {
        const StepReport own = run.Step(), other = plain.Step();
        EXPECT_EQ(own.loss, other.loss);
        EXPECT_NEAR(own.gradient_norm, other.gradient_norm, 1e-5 * other.gradient_norm);
        expect_still();
      }
      EXPECT_EQ(run.trainer->Evaluate()->loss, plain.trainer->Evaluate()->loss);
      // They add zero at first, then learn.
      EXPECT_EQ(run.Step().loss, plain.Step().loss);
      for (size_t k = 0; k < first.size(); ++k) {
        EXPECT_GT(SumOfSquares(parameters.value(second[k])), 0) << parameters[second[k]].name;
      }
      EXPECT_NE(run.Step().loss, plain.Step().loss);
      run.Step();
      for (size_t k = 0; k < first.size(); ++k) {
        EXPECT_NE(ValuesOf(parameters.value(first[k])), starts[k]);
      }
    }
  }
}

// With masks under which gradients of inputs are exact: those of slope are under masks of their own.
TEST(LazyAdapters, GradientsAreSlopesOfTheLoss) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    JobSpec job = Job(family);
    job.train.sparsity.method = "static";
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32"), job.train));
    ParameterSet& parameters = run.model->parameters();
    PhiloxStream random(PhiloxKey{3, 0, 0});
    for (const int64_t i : AdaptersIn(parameters, AdapterSide::kOutput)) {
      float* values = parameters.value(i).As<float>();
      for (int64_t e = 0; e < parameters[i].shape.Elements(); ++e) {
        values[e] = static_cast<float>(0.2 * random.Normal());
      }
    }
    const auto prepare = [&] {
      for (const auto& technique : run.model->techniques()) {
        ASSERT_TRUE(technique->BeforeForward(run.context, kFirst).ok());
      }
      ASSERT_TRUE(run.model->Pack(run.context).ok());
    };
    prepare();
    run.Differentiate(*batch);
    for (const AdapterSide side : {AdapterSide::kInput, AdapterSide::kOutput}) {
      for (const int64_t i : AdaptersIn(parameters, side)) {
        const TensorView value = parameters.value(i);
        const std::vector<float> start = ValuesOf(value), gradient = ValuesOf(parameters.gradient(i));
        const double norm = std::sqrt(SumOfSquares(parameters.gradient(i)));
        ASSERT_GT(norm, 0);
        constexpr double kStep = 2e-3;
        double loss[2];
        for (int end : {0, 1}) {
          for (size_t e = 0; e < start.size(); ++e) {
            value.As<float>()[e] =
                start[e] + static_cast<float>((end == 0 ? -kStep : kStep) * gradient[e] / norm);
          }
          prepare();
          loss[end] = run.Loss(*batch);
        }
        std::copy(start.begin(), start.end(), value.As<float>());
        EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), norm, 0.02 * norm + 2e-3)
            << parameters[i].name;
      }
    }
  }
}

TEST(LazyAdapters, AResumedRunGoesOnBitForBitBeforeAndAfterTheyBegin) {
  RandomTokens tokens = TinyTokens();
  for (const int64_t before : {4, 6, 8}) {
    for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
      SCOPED_TRACE(std::to_string(before) + " " + precision);
      const JobSpec job = Job("llama");
      Plan plan = TinyPlan(precision, 2, 2);
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
      resumed.trainer->Restored(whole.trainer->counters());
      EXPECT_EQ(resumed.trainer->Evaluate()->loss, whole.trainer->Evaluate()->loss);
      for (int64_t i = before; i < kSteps; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
      EXPECT_EQ(resumed.Parameters(), whole.Parameters());
    }
  }
}

// The planner counts all bytes of adapters with the state of the optimizer.
TEST(LazyAdapters, MemoryIsWhatIsPredicted) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(family) + " " + precision);
      JobSpec job = Job(family, 16);
      job.model.width = 128;
      job.model.heads = 4;
      job.model.context = 64;
      const Plan plan = TinyPlan(precision, 2, 2);
      RandomTokens tokens(job.model.vocab_size, job.model.context);
      const auto total = [](const MemoryBreakdown& memory) {
        return static_cast<double>(memory.parameters_bytes + memory.gradients_bytes +
                                   memory.activations_bytes + memory.optimizer_bytes +
                                   memory.workspace_bytes);
      };
      const auto measure = [&](const JobSpec& of) {
        TinyTraining run(of, plan, tokens);
        MemoryBreakdown measured;
        for (int64_t step = 0; step < kSteps; ++step) measured = run.Step().peak_memory;
        return total(measured);
      };
      const auto predict = [&](const JobSpec& of) {
        return total(PredictMemory(MemoryInputsOf(of, plan, {ProductKind::kNative})));
      };
      const double measured = measure(job), predicted = predict(job);
      EXPECT_NEAR(predicted, measured, 0.02 * measured);
      const double adapters = measured - measure(WithoutAdapters(job));
      EXPECT_NEAR(predicted - predict(WithoutAdapters(job)), adapters, 0.1 * adapters);
    }
  }
}

TEST(LazyAdapters, RefusesWhatDoesNotFit) {
  const auto error = [](auto&& change) {
    JobSpec job = Job();
    job.data.train = {"a.txt"};
    change(job);
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error([](JobSpec&) {}), "");
  EXPECT_THAT(error([](JobSpec& job) { job.train.sparsity.method = "sr_ste"; }),
              HasSubstr("adapter_rank is of train.sparsity.method slope, not of sr_ste"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.sparsity.adapter_share = 0.01; }),
              HasSubstr("leaves adapters none of train.steps 10"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.sparsity.adapter_rank = 0; }),
              HasSubstr("adapter_share is of adapters, and there are none"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.freeze = {"*.0.*"}; }),
              HasSubstr("does not go with model.freeze yet"));
}

}  // namespace
}  // namespace weft::engine
