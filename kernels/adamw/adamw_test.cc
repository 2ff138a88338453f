#include "kernels/adamw/adamw.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(AdamW, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::AdamWCases()), "");
}

TEST(AdamW, FirstStepFromZeroMovesByTheLearningRateAgainstTheGradient) {
  std::array<float, 2> p = {1, 1}, g = {0.001f, -1000}, m{}, v{};
  std::array<AdamWTensor, 1> tensors = {AdamWTensor{.parameter = p.data(),
                                                    .gradient = g.data(),
                                                    .first_moment = m.data(),
                                                    .second_moment = v.data(),
                                                    .count = 2}};
  ASSERT_TRUE(AdamW({}, {.tensors = tensors, .learning_rate = 0.25f, .epsilon = 0}).ok());
  EXPECT_NEAR(p[0], 0.75f, 1e-6);
  EXPECT_NEAR(p[1], 1.25f, 1e-6);
}

TEST(AdamW, RefusesArgumentsThatDoNotFit) {
  std::array<AdamWTensor, 1> missing = {AdamWTensor{.count = 2}};
  EXPECT_EQ(AdamW({}, {.tensors = missing}).ToString(), "INVALID: AdamW: a tensor has no memory");
  EXPECT_EQ(AdamW({}, {.tensors = {}, .step = 0}).code(), StatusCode::kInvalid);
  EXPECT_EQ(AdamW({}, {.tensors = {}, .beta2 = 1.0f}).code(), StatusCode::kInvalid);
  EXPECT_TRUE(AdamW({}, {}).ok());
}

}  // namespace
}  // namespace weft::kernels
