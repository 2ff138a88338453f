#include "kernels/adafactor/adafactor.h"

#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Adafactor, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::AdafactorCases()), "");
}

struct Matrix {
  static constexpr int64_t kRows = 30, kColumns = 20;
  std::vector<float> p, g, rows, columns;

  Matrix() : p(kRows * kColumns), g(p.size()), rows(kRows), columns(kColumns) {
    PhiloxStream rng({.seed = 3});
    for (float& value : p) value = static_cast<float>(rng.Normal());
    for (float& value : g) value = static_cast<float>(rng.Normal());
  }
  AdafactorTensor Tensor() {
    return {p.data(), g.data(), rows.data(), columns.data(), kRows, kColumns};
  }
};

TEST(Adafactor, DoesNotSeeTheScaleOfTheGradient) {
  Matrix plain, scaled;
  for (int step = 1; step <= 4; ++step) {
    const std::array<AdafactorTensor, 1> a = {plain.Tensor()}, b = {scaled.Tensor()};
    ASSERT_TRUE(Adafactor({}, {.tensors = a, .learning_rate = 0.1f, .step = step}).ok());
    ASSERT_TRUE(
        Adafactor({},
                  {.tensors = b, .learning_rate = 0.1f, .gradient_scale = 1024.0f, .step = step})
            .ok());
  }
  EXPECT_EQ(plain.p, scaled.p);
}

TEST(Adafactor, AClippedStepIsAsLongAsTheRateTimesTheParameter) {
  Matrix matrix;
  matrix.g[7] = 1000;  // a spike that its row and column cannot explain
  const std::vector<float> before = matrix.p;
  const std::array<AdafactorTensor, 1> tensors = {matrix.Tensor()};
  ASSERT_TRUE(Adafactor({}, {.tensors = tensors, .learning_rate = 0.01f, .clip = 0.5f}).ok());
  double moved = 0, size = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    moved += std::pow(matrix.p[i] - before[i], 2);
    size += std::pow(before[i], 2);
  }
  EXPECT_NEAR(std::sqrt(moved / size), 0.01 * 0.5, 1e-5);
}

TEST(Adafactor, RefusesArgumentsThatDoNotFit) {
  Matrix matrix;
  AdafactorTensor tensor = matrix.Tensor();
  tensor.row_moment = nullptr;
  EXPECT_EQ(Adafactor({}, {.tensors = {&tensor, 1}}).code(), StatusCode::kInvalid);
  tensor.rows = 0;
  EXPECT_EQ(Adafactor({}, {.tensors = {&tensor, 1}}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Adafactor({}, {.step = 0}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Adafactor({}, {.clip = 0}).code(), StatusCode::kInvalid);
  EXPECT_TRUE(Adafactor({}, {}).ok());
}

}  // namespace
}  // namespace weft::kernels
