#include "common/model/chinchilla.h"

#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Chinchilla, GivesThePublishedOptima) {
  const struct {
    const ScalingLaw& law;
    double flops, parameters, tokens;
  } cases[] = {
      {kHoffmann, 5.76e23, 32.2e9, 2.98e12}, {kEpoch, 5.76e23, 72e9, 1.33e12},
      {kHoffmann, 1e20, 645e6, 25.9e9},      {kEpoch, 1e20, 854e6, 19.5e9},
      {kHoffmann, 1e18, 80.6e6, 2.07e9},     {kEpoch, 1e18, 80.6e6, 2.07e9},
  };
  for (const auto& c : cases) {
    const ComputeOptimum optimum = OptimumOf(c.law, c.flops);
    EXPECT_NEAR(optimum.parameters / c.parameters, 1, 0.01) << c.law.name << " " << c.flops;
    EXPECT_NEAR(optimum.tokens / c.tokens, 1, 0.01) << c.law.name << " " << c.flops;
    EXPECT_NEAR(6 * optimum.parameters * optimum.tokens / c.flops, 1, 1e-9);
  }
}

TEST(Chinchilla, BudgetsAreReadInFlopsAndDeviceHours) {
  for (const char* text : {"3e19", "3e19flops", "3e19 FLOPs", "30000000000000000000 flop"}) {
    const auto budget = ParseBudget(text);
    ASSERT_TRUE(budget.ok()) << text;
    EXPECT_EQ(budget->flops, 3e19);
    EXPECT_EQ(budget->device_hours, 0);
  }
  for (const char* text : {"0.5gpu-hours", "0.5 GPU-h", "0.5gpuh"}) {
    const auto budget = ParseBudget(text);
    ASSERT_TRUE(budget.ok()) << text;
    EXPECT_EQ(budget->device_hours, 0.5);
  }
  for (const char* text : {"", "much", "0", "-1e20", "1e20 watts", "nan", "inf", "1e999", "gpuh",
                           "1e20flops1", "\xff"}) {
    EXPECT_EQ(ParseBudget(text).status().code(), StatusCode::kInvalid) << text;
  }
}

TEST(Chinchilla, NoOtherSizeIsBetter) {
  for (const ScalingLaw& law : {kHoffmann, kEpoch}) {
    const ComputeOptimum best = OptimumOf(law, 3e19);
    for (double factor : {0.5, 0.9, 1.1, 2.0}) {
      EXPECT_GT(law.Loss(best.parameters * factor, best.tokens / factor), best.loss);
    }
  }
}

TEST(Chinchilla, ModelsOfKnownSizesHaveTheirUsualShape) {
  JobSpec job;
  job.model.vocab_size = 50257;
  job.model.context = 1024;
  for (auto [parameters, layers, width] :
       {std::tuple<double, int64_t, int64_t>{124e6, 12, 768}, {1.3e9, 24, 2048}}) {
    const SizedModel model = ModelOfSize(job, parameters);
    EXPECT_NEAR(static_cast<double>(model.parameters) / parameters, 1, 0.04);
    EXPECT_LT(std::abs(std::log(static_cast<double>(model.width) / static_cast<double>(width))),
              0.25)
        << model.layers << " x " << model.width;
    EXPECT_LT(std::abs(std::log(static_cast<double>(model.layers) / static_cast<double>(layers))),
              0.5)
        << model.layers << " x " << model.width;
    EXPECT_EQ(model.width % model.heads, 0);
  }
}

TEST(Chinchilla, TinyAndHugeSizesStillGiveAModel) {
  JobSpec job;
  for (double parameters : {1.0, 1e6, 1e12, 1e15}) {
    const SizedModel model = ModelOfSize(job, parameters);
    EXPECT_GE(model.layers, 1);
    EXPECT_GE(model.width, 64);
    EXPECT_GT(model.flops_per_token, 0);
  }
}

}  // namespace
}  // namespace weft
