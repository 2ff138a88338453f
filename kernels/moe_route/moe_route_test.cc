#include "kernels/moe_route/moe_route.h"

#include <array>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/moe_route/moe_route_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using ::testing::ElementsAre;

TEST(MoeRoute, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::MoeRouteCases()), "");
}

TEST(MoeRoute, ReferenceGradientIsThatOfFiniteDifferences) {
  const std::vector<double> logits = {0.3, -1, 2, 0.9, -0.2}, dweights = {1.5, -0.5, 0.7};
  const std::vector<double> balance = {0.1, -0.4, 0.3, 0.2, 0.6};
  for (const bool normalize : {true, false}) {
    const auto loss = [&](const std::vector<double>& at) {
      const ref::Route route = ref::RouteToken(at, 3, normalize);
      double sum = 0;
      for (size_t i = 0; i < 3; ++i) sum += dweights[i] * route.weights[i];
      for (size_t e = 0; e < 5; ++e) sum += balance[e] * route.probabilities[e];
      return sum;
    };
    const auto gradient = ref::RouteTokenGradient(ref::RouteToken(logits, 3, normalize), dweights,
                                                  balance, normalize);
    EXPECT_EQ(testing::GradientMismatch(loss, logits, gradient), "");
  }
}

TEST(MoeRoute, TakesTheFirstOfEqualExpertsAndSurvivesNaN) {
  const float nan = std::nanf("");
  std::array<float, 8> logits = {1, 1, 1, 1, nan, nan, nan, nan}, probabilities;
  std::array<int32_t, 4> chosen;
  std::array<float, 4> weights;
  ASSERT_TRUE(MoeRoute({}, {{logits.data(), DType::kF32, {2, 4}},
                            {probabilities.data(), DType::kF32, {2, 4}},
                            {chosen.data(), DType::kI32, {2, 2}},
                            {weights.data(), DType::kF32, {2, 2}}})
                  .ok());
  EXPECT_THAT(chosen, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(weights[0], 0.5f);
  EXPECT_TRUE(std::isnan(weights[2]));
}

// Four tokens that want two of three experts each.
struct Dispatched {
  std::array<int32_t, 8> chosen = {2, 0, 0, 1, 2, 0, 0, 2};
  std::array<int32_t, 8> rows{}, places{};
  std::array<int32_t, 3> wanted{}, taken{};

  Status Run(int64_t capacity) {
    return MoeDispatch({}, {.chosen = {chosen.data(), DType::kI32, {4, 2}},
                            .capacity = capacity,
                            .rows = {rows.data(), DType::kI32, {8}},
                            .places = {places.data(), DType::kI32, {4, 2}},
                            .wanted_count = {wanted.data(), DType::kI32, {3}},
                            .taken_count = {taken.data(), DType::kI32, {3}}});
  }
};

TEST(MoeDispatch, OrdersByExpertAndThenByToken) {
  Dispatched dispatched;
  ASSERT_TRUE(dispatched.Run(0).ok());
  EXPECT_THAT(dispatched.rows, ElementsAre(0, 1, 2, 3, 1, 0, 2, 3));
  EXPECT_THAT(dispatched.places, ElementsAre(5, 0, 1, 4, 6, 2, 3, 7));
  EXPECT_THAT(dispatched.wanted, ElementsAre(4, 1, 3));
  EXPECT_EQ(dispatched.taken, dispatched.wanted);
}

TEST(MoeDispatch, DropsTheLastTokensOfAFullExpert) {
  Dispatched dispatched;
  ASSERT_TRUE(dispatched.Run(2).ok());
  EXPECT_THAT(dispatched.rows, ElementsAre(0, 1, 1, 0, 2, -1, -1, -1));
  EXPECT_THAT(dispatched.places, ElementsAre(3, 0, 1, 2, 4, -1, -1, -1));
  EXPECT_THAT(dispatched.wanted, ElementsAre(4, 1, 3));
  EXPECT_THAT(dispatched.taken, ElementsAre(2, 1, 2));
}

TEST(MoeDispatch, WhatHasChosenNoExpertNeitherCountsNorWaits) {
  Dispatched dispatched;
  dispatched.chosen[2] = dispatched.chosen[3] = -1;  // the second token
  ASSERT_TRUE(dispatched.Run(2).ok());
  EXPECT_THAT(dispatched.rows, ElementsAre(0, 2, 0, 2, -1, -1, -1, -1));
  EXPECT_THAT(dispatched.places, ElementsAre(2, 0, -1, -1, 3, 1, -1, -1));
  EXPECT_THAT(dispatched.wanted, ElementsAre(3, 0, 3));
  EXPECT_THAT(dispatched.taken, ElementsAre(2, 0, 2));
}

TEST(MoeDispatch, TakesAllTokensOfOneExpert) {
  Dispatched dispatched;
  dispatched.chosen.fill(1);
  ASSERT_TRUE(dispatched.Run(0).ok());
  EXPECT_THAT(dispatched.places, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(dispatched.taken, ElementsAre(0, 8, 0));
}

TEST(MoeDispatch, NamesAnExpertThatIsOutOfRange) {
  Dispatched dispatched;
  dispatched.chosen[5] = 3;
  EXPECT_EQ(dispatched.Run(0).ToString(),
            "INVALID: MoeDispatch: chosen[2, 1] is 3, outside of [-1, 3)");
}

TEST(MoeRoute, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  const TensorView logits(memory.data(), DType::kF32, {2, 2});
  const TensorView three(memory.data(), DType::kI32, {2, 3});
  EXPECT_EQ(MoeRoute({}, {logits, logits, three, logits}).ToString(),
            "INVALID: MoeRoute: this many experts cannot be chosen");
  const TensorView two(memory.data(), DType::kI32, {2, 2});
  EXPECT_EQ(MoeRoute({}, {.logits = logits,
                          .probabilities = logits,
                          .chosen = two,
                          .weights = logits,
                          .lengths = {memory.data(), DType::kI32, {3}}})
                .ToString(),
            "INVALID: MoeRoute: lengths must be of equal parts of tokens");
  EXPECT_EQ(MoeRoute({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(MoeRouteBackward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(MoeDispatch({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
