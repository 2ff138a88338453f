// Low-rank adapters of sparse weights, which the last steps train with everything else.
#include "worker/engine/techniques/sparse24/lazy_adapters.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/rng.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/linear.h"
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

/// A layer with two outputs and adapters besides dense weights.
struct LayerRun : ProductsFactory {
  static constexpr int64_t kIn = 24, kRows[2] = {16, 40}, kOut = 56, kRank = 3;
  bool active = true;
  Allocator allocator;
  Context context;
  ParameterSet parameters;
  Linear linear;
  std::unique_ptr<ParameterGradients> gradients;

  LayerRun()
      : linear(&parameters, {{{"a", kRows[0]}, {"b", kRows[1]}}, kIn, /*bias=*/false},
               {DType::kF32, this}) {
    context.allocator = &allocator;
    for (int64_t i = 0; i < parameters.size(); ++i) parameters.SetStart(i, {.deviation = 0.3});
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(4).ok(), "initialize");
    WEFT_CHECK(linear.Pack(context, Repack::kAll).ok(), "pack");
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    gradients->StartStep();
  }

  std::vector<ParameterInfo> AdaptersOf(const ParameterInfo& weight) const override {
    return LazyAdaptersOf({.method = "slope", .adapter_rank = kRank}, weight);
  }
  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    return std::make_unique<LazyAdapterProducts>(layer, std::make_unique<DenseProducts>(layer),
                                                 &active);
  }
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context& /*context*/) override { return OkStatus(); }
  Status StartPack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

  Tensor Random(const Shape& shape, uint64_t seed) {
    auto tensor = Tensor::New(context, Component::kActivations, DType::kF32, shape);
    PhiloxStream random(PhiloxKey{seed, 0, 0});
    for (int64_t i = 0; i < shape.Elements(); ++i) {
      tensor->As<float>()[i] = static_cast<float>(random.Normal());
    }
    return *tensor;
  }
  std::vector<float> Value(const std::string& name) const {
    return ValuesOf(parameters.value(*parameters.Find(name)));
  }
  std::vector<float> Gradient(const std::string& name) const {
    return ValuesOf(parameters.gradient(*parameters.Find(name)));
  }
};

TEST(LazyAdapters, ProductsHaveTheResultsAndGradientsOfTheSum) {
  constexpr int64_t kCount = 5, kIn = LayerRun::kIn, kOut = LayerRun::kOut;
  constexpr int64_t kRank = LayerRun::kRank;
  for (const bool active : {false, true}) {
    SCOPED_TRACE(active ? "with adapters" : "before them");
    LayerRun run;
    run.active = active;
    // The whole matrix, by output.
    std::vector<double> w;
    for (const char* name : {"a", "b"}) {
      const auto weight = run.Value(name + std::string(".weight"));
      const auto a = run.Value(name + std::string(".weight.adapter_in"));
      const auto b = run.Value(name + std::string(".weight.adapter_out"));
      for (size_t i = 0; i < weight.size(); ++i) {
        double sum = weight[i];
        for (size_t k = 0; active && k < kRank; ++k) {
          sum += double{b[i / kIn * kRank + k]} * a[k * kIn + i % kIn];
        }
        w.push_back(sum);
      }
    }
    std::vector<double> dw(w.size(), 0.0);
    for (const uint64_t pass : {0, 1}) {  // The second one adds.
      run.gradients->StartPass({});
      Tape tape(run.gradients.get());
      const weft::engine::Value x = tape.NewValue(run.Random({kCount, kIn}, 20 + pass), true);
      auto y = run.linear.Forward(run.context, tape, x);
      ASSERT_TRUE(y.ok()) << y.status().message();
      const Tensor dy = run.Random({kCount, kOut}, 30 + pass);
      const std::vector<float> xs = ValuesOf(x.tensor.view()), dys = ValuesOf(dy.view());
      const std::vector<float> ys = ValuesOf(y->tensor.view());
      ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
      ASSERT_TRUE(tape.RunBackward(run.context).ok());
      const std::vector<float> dxs = ValuesOf(tape.TakeGradient(x.node).view());
      ASSERT_TRUE(run.gradients->FinishPass(run.context).ok());
      std::vector<double> dx(dxs.size(), 0.0);
      for (int64_t r = 0; r < kCount; ++r) {
        for (int64_t o = 0; o < kOut; ++o) {
          double sum = 0;
          for (int64_t i = 0; i < kIn; ++i) {
            sum += w[o * kIn + i] * xs[r * kIn + i];
            dx[r * kIn + i] += w[o * kIn + i] * dys[r * kOut + o];
            dw[o * kIn + i] += double{dys[r * kOut + o]} * xs[r * kIn + i];
          }
          EXPECT_NEAR(ys[r * kOut + o], sum, 1e-5);
        }
      }
      for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dxs[i], dx[i], 1e-4);
    }
    int64_t first = 0;
    for (const int64_t output : {0, 1}) {
      const std::string name = output == 0 ? "a.weight" : "b.weight";
      const int64_t rows = LayerRun::kRows[output];
      const auto a = run.Value(name + ".adapter_in"), b = run.Value(name + ".adapter_out");
      const auto da = run.Gradient(name + ".adapter_in"), db = run.Gradient(name + ".adapter_out");
      const auto dweight = run.Gradient(name);
      for (int64_t k = 0; k < kRank; ++k) {
        for (int64_t i = 0; i < kIn; ++i) {
          double sum = 0;
          for (int64_t o = 0; active && o < rows; ++o) {
            sum += b[o * kRank + k] * dw[(first + o) * kIn + i];
          }
          EXPECT_NEAR(da[k * kIn + i], sum, 1e-4);
        }
        for (int64_t o = 0; o < rows; ++o) {
          double sum = 0;
          for (int64_t i = 0; active && i < kIn; ++i) {
            sum += dw[(first + o) * kIn + i] * a[k * kIn + i];
          }
          EXPECT_NEAR(db[o * kRank + k], sum, 1e-4);
        }
      }
      for (int64_t i = 0; i < rows * kIn; ++i) EXPECT_NEAR(dweight[i], dw[first * kIn + i], 1e-4);
      first += rows;
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
      ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
      EXPECT_EQ(resumed.trainer->Evaluate()->loss, whole.trainer->Evaluate()->loss);
      for (int64_t i = before; i < kSteps; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
      EXPECT_EQ(resumed.Parameters(), whole.Parameters());
    }
  }
}

// Adapters are auxiliary parameters: the planner adds them to each component.
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
              HasSubstr("train.sparsity.adapter_rank 3 does not go with model.freeze"));
}

}  // namespace
}  // namespace weft::engine
