#include "worker/engine/techniques/averaging/weight_average.h"

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/optim/testing.h"

namespace weft::engine {
namespace {

std::unique_ptr<WeightAverage> NewAverage(OptimizerRun& run, const AveragingSpec& spec) {
  auto made = WeightAverage::New(run.context, spec, run.parameters);
  WEFT_CHECK(made.ok(), made.status().message());
  return *std::move(made);
}

// Element `k` of every parameter after update t: anything that differs from update to update.
double ValueAt(int64_t t, int64_t k) {
  return std::sin(static_cast<double>(t * 7 + k));
}

void SetParameters(OptimizerRun& run, int64_t t) {
  for (int64_t p = 0; p < run.parameters.size(); ++p) {
    const TensorView view = run.parameters.value(p);
    for (int64_t k = 0; k < view.shape.Elements(); ++k) {
      kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
        view.As<T>()[k] = FromFloat<T>(static_cast<float>(ValueAt(t, k)));
      });
    }
  }
}

std::vector<AveragedParameter> AveragesOf(OptimizerRun& run, WeightAverage& average,
                                          int64_t updates) {
  auto averages = average.Averages(run.context, updates);
  WEFT_CHECK(averages.ok(), averages.status().message());
  return *averages;
}

// The average of element k of the second parameter.
float AverageOf(OptimizerRun& run, WeightAverage& average, int64_t updates, int64_t k) {
  return AveragesOf(run, average, updates)[1].average[k];
}

TEST(WeightAverageTest, AnExponentialAverageStartsAtItsFirstValue) {
  OptimizerRun run(OptimizerSpec{});
  auto average = NewAverage(run, {.kind = "ema", .decay = 0.75, .every_steps = 3});
  EXPECT_TRUE(AveragesOf(run, *average, 2).empty());
  std::vector<double> expected(5);
  for (int64_t t = 1; t <= 31; ++t) {
    SetParameters(run, t);
    ASSERT_TRUE(average->Observe(run.context, t).ok());
    if (t % 3 != 0) continue;
    for (int64_t k = 0; k < 5; ++k) {
      expected[k] = t == 3 ? ValueAt(t, k) : 0.75 * expected[k] + 0.25 * ValueAt(t, k);
    }
  }
  for (int64_t k = 0; k < 5; ++k) EXPECT_NEAR(AverageOf(run, *average, 31, k), expected[k], 1e-6);
  EXPECT_EQ(average->StateTensors()[0].name, "ema/wte.weight");
}

TEST(WeightAverageTest, LawaIsTheMeanOfTheLastSnapshots) {
  OptimizerRun run(OptimizerSpec{});
  auto average = NewAverage(run, {.kind = "lawa", .every_steps = 2, .window = 3});
  EXPECT_TRUE(AveragesOf(run, *average, 1).empty());
  std::deque<int64_t> snapshots;
  for (int64_t t = 1; t <= 15; ++t) {
    SetParameters(run, t);
    ASSERT_TRUE(average->Observe(run.context, t).ok());
    if (t % 2 == 0) snapshots.push_back(t);
    if (snapshots.size() > 3) snapshots.pop_front();
    if (snapshots.empty()) continue;
    double mean = 0;
    for (int64_t s : snapshots) mean += ValueAt(s, 4) / static_cast<double>(snapshots.size());
    ASSERT_NEAR(AverageOf(run, *average, t, 4), mean, 1e-6) << t;
  }
  EXPECT_EQ(average->StateTensors().size(), 3u * 5);
  EXPECT_EQ(average->StateTensors()[5].name, "lawa/1/wte.weight");
}

TEST(WeightAverageTest, LawaDividesTheVarianceOfANoisyQuadraticByItsWindow) {
  // Plain descent on x^2 / 2 with noise: x = 0.2 x' + noise, nearly independent from step to step.
  OptimizerRun run(OptimizerSpec{});
  auto average = NewAverage(run, {.kind = "lawa", .every_steps = 4, .window = 16});
  PhiloxStream random({.seed = 3});
  const TensorView x = run.parameters.value(1);
  for (int64_t t = 1; t <= 64; ++t) {
    for (int64_t k = 0; k < x.shape.Elements(); ++k) {
      x.As<float>()[k] = static_cast<float>(0.2 * x.As<float>()[k] + random.Normal());
    }
    ASSERT_TRUE(average->Observe(run.context, t).ok());
  }
  const AveragedParameter a = AveragesOf(run, *average, 64)[1];
  double last = 0, mean = 0;
  for (int64_t k = 0; k < a.count(); ++k) {
    last += std::pow(a.parameter.As<float>()[k], 2);
    mean += std::pow(a.average[k], 2);
  }
  EXPECT_NEAR(last / mean, 16, 4);
}

TEST(WeightAverageTest, ExchangingTwiceIsAsIfNever) {
  for (const char* kind : {"ema", "lawa"}) {
    for (DType matrices : {DType::kF32, DType::kBF16}) {
      OptimizerRun run(OptimizerSpec{}, matrices);
      auto average = NewAverage(run, {.kind = kind, .decay = 0.75, .window = 3});
      std::vector<std::vector<double>> expected;
      for (int64_t t = 1; t <= 3; ++t) {
        SetParameters(run, t);
        const auto values = run.Values();
        for (size_t p = 0; p < values.size(); ++p) {
          if (t == 1) expected.emplace_back(values[p].size(), 0.0);
          for (size_t k = 0; k < values[p].size(); ++k) {
            if (kind == std::string("lawa")) {
              expected[p][k] += values[p][k] / 3;
            } else {
              expected[p][k] = t == 1 ? values[p][k] : 0.75 * expected[p][k] + 0.25 * values[p][k];
            }
          }
        }
        ASSERT_TRUE(average->Observe(run.context, t).ok());
      }
      const auto before = run.Values();
      std::vector<std::vector<float>> state;
      const auto states = average->StateTensors();
      for (const NamedTensor& tensor : states) state.push_back(ValuesOf(tensor.view));
      const auto averages = AveragesOf(run, *average, 3);
      ASSERT_TRUE(Exchange(run.context, averages).ok());
      const auto exchanged = run.Values();
      for (size_t p = 0; p < exchanged.size(); ++p) {
        const bool half = run.parameters.value(static_cast<int64_t>(p)).dtype == DType::kBF16;
        EXPECT_EQ(half,
                  matrices == DType::kBF16 && run.parameters[static_cast<int64_t>(p)].decay());
        for (size_t k = 0; k < exchanged[p].size(); ++k) {
          // bf16 is rounded to nearest.
          ASSERT_NEAR(exchanged[p][k], expected[p][k],
                      half ? std::abs(expected[p][k]) * 0x1p-8 + 1e-6 : 1e-6);
        }
      }
      ASSERT_TRUE(Exchange(run.context, averages).ok());
      EXPECT_EQ(run.Values(), before);
      for (size_t i = 0; i < states.size(); ++i) EXPECT_EQ(ValuesOf(states[i].view), state[i]);
    }
  }
}

}  // namespace
}  // namespace weft::engine
