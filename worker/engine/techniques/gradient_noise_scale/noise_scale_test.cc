#include "worker/engine/techniques/gradient_noise_scale/noise_scale.h"

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft::engine {
namespace {

// Square norm of the mean of `count` gradients of 200 numbers, each 0.1 plus noise of deviation
// 1 / sqrt(2): tr(S) = 100, |G|^2 = 2.
double SquareNorm(PhiloxStream& random, int64_t count) {
  double square = 0;
  for (int i = 0; i < 200; ++i) {
    square += std::pow(0.1 + random.Normal() * std::sqrt(0.5 / static_cast<double>(count)), 2);
  }
  return square;
}

TEST(NoiseScaleTest, FindsTheScaleOfSyntheticGradients) {
  NoiseScale scale;
  EXPECT_FALSE(scale.Value().has_value());
  PhiloxStream random({.seed = 4});
  double mean = 0;
  for (int step = 0; step < 3000; ++step) {
    scale.Add(8, SquareNorm(random, 8), 64, SquareNorm(random, 64));
    if (step >= 1000) mean += scale.Value().value_or(0) / 2000;
  }
  EXPECT_NEAR(mean, 50, 3);
}

TEST(NoiseScaleTest, ItsStateIsAllOfIt) {
  NoiseScale original, copy;
  original.Add(1, 3.0, 4, 1.5);
  const TensorView from = original.StateTensors()[0].view;
  std::memcpy(copy.StateTensors()[0].view.data, from.data, from.Bytes());
  original.Add(1, 3.5, 4, 1.25);
  copy.Add(1, 3.5, 4, 1.25);
  ASSERT_TRUE(copy.Value().has_value());
  EXPECT_EQ(*copy.Value(), *original.Value());
}

TEST(NoiseScaleTest, GradientsThatAreOnlyNoiseGiveNone) {
  NoiseScale scale;
  scale.Add(1, 8.0, 4, 1.0);  // falls faster than noise does
  EXPECT_FALSE(scale.Value().has_value());
}

}  // namespace
}  // namespace weft::engine
