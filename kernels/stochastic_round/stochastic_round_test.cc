#include "kernels/stochastic_round/stochastic_round.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

std::vector<float> Rounded(std::vector<float> x, const PhiloxKey& key) {
  std::vector<BFloat16> y(x.size());
  const auto count = static_cast<int64_t>(x.size());
  Status status = StochasticRound({}, {.x = TensorView(x.data(), DType::kF32, {count}),
                                       .y = TensorView(y.data(), DType::kBF16, {count}),
                                       .key = key});
  EXPECT_TRUE(status.ok()) << status.ToString();
  for (size_t i = 0; i < x.size(); ++i) x[i] = ToFloat(y[i]);
  return x;
}

TEST(StochasticRound, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::StochasticRoundCases()), "");
}

TEST(StochasticRound, TheMeanOfManyRoundingsIsTheNumber) {
  constexpr int64_t kCount = 1 << 20;
  for (float x : {1.0f + 0x1.0p-12f, 1.3f, -2.7182818f, 3e-39f, 1e30f}) {
    double mean = 0;
    for (float y : Rounded(std::vector<float>(kCount, x), {.seed = 3})) mean += y;
    mean /= kCount;
    // A rounding is a choice between two neighbours: at most half their distance as deviation.
    const double step = std::exp2(std::max(std::floor(std::log2(std::abs(x))), -126.0f) - 7);
    EXPECT_NEAR(mean, x, 4 * step / 2 / std::sqrt(static_cast<double>(kCount))) << x;
    EXPECT_GT(std::abs(ToFloat(ToBFloat16(x)) - x), 8 * step / 2 / 1024) << "nearest is off";
  }
}

TEST(StochasticRound, WhatBFloat16HoldsStays) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> exact = {0.0f,        -0.0f,       1.0f,       -1.5f,
                                    0x1.0p-133f, 0x1.fep127f, -kInfinity, kInfinity};
  for (uint32_t step = 0; step < 50; ++step) {
    const std::vector<float> rounded = Rounded(exact, {.seed = 1, .step = step});
    EXPECT_EQ(rounded, exact);
    EXPECT_TRUE(std::signbit(rounded[1]));
  }
}

TEST(StochasticRound, FiniteStaysFiniteAndNanANan) {
  uint32_t bits = 0x7f800001u;
  float signalling;
  std::memcpy(&signalling, &bits, sizeof signalling);
  for (uint32_t step = 0; step < 50; ++step) {
    const std::vector<float> rounded =
        Rounded({std::numeric_limits<float>::max(), std::nanf(""), signalling}, {.step = step});
    EXPECT_EQ(rounded[0], 0x1.fep127f);
    EXPECT_TRUE(std::isnan(rounded[1]) && std::isnan(rounded[2]));
  }
}

// From 1, a thousand steps of 1e-4 lead nowhere when each is rounded to nearest.
TEST(StochasticRound, SmallUpdatesAddUp) {
  std::vector<float> nearest(1000, 1.0f), stochastic(1000, 1.0f);
  for (uint32_t step = 0; step < 1000; ++step) {
    for (float& w : nearest) w = ToFloat(ToBFloat16(w + 1e-4f));
    for (float& w : stochastic) w += 1e-4f;
    stochastic = Rounded(std::move(stochastic), {.seed = 9, .step = step});
  }
  double mean = 0;
  for (float w : stochastic) mean += w / 1000;
  EXPECT_EQ(nearest[0], 1.0f);
  EXPECT_NEAR(mean, 1.1, 0.005);
}

TEST(StochasticRound, RefusesArgumentsThatDoNotFit) {
  std::array<float, 4> x{}, y{};
  TensorView from(x.data(), DType::kF32, {4}), to(y.data(), DType::kBF16, {4});
  EXPECT_EQ(StochasticRound({}, {.x = to, .y = to, .key = {}}).code(), StatusCode::kInvalid);
  EXPECT_EQ(StochasticRound({}, {.x = from, .y = from, .key = {}}).code(), StatusCode::kInvalid);
  EXPECT_EQ(StochasticRound({}, {.x = from, .y = to, .key = {}, .first_element = 2}).code(),
            StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
