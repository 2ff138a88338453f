#include "kernels/adafactor/adafactor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
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
    return {.parameter = p.data(),
            .gradient = g.data(),
            .row_moment = rows.data(),
            .column_moment = columns.data(),
            .rows = kRows,
            .columns = kColumns};
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

TEST(Adafactor, ABf16ParameterIsTheF32UpdateRoundedUpOrDownWithoutBias) {
  // Columns that are no multiple of four, and one row alone.
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{30, 19}, {1, 600}}) {
    const auto count = static_cast<size_t>(rows * columns);
    PhiloxStream rng({.seed = 3});
    std::vector<float> wide(count), gradient(count), r(rows), c(columns), r2(rows), c2(columns);
    std::vector<BFloat16> narrow(count);
    for (size_t i = 0; i < count; ++i) {
      narrow[i] = ToBFloat16(static_cast<float>(rng.Normal()));
      wide[i] = ToFloat(narrow[i]);
      gradient[i] = static_cast<float>(rng.Normal());
    }
    const std::vector<BFloat16> start = narrow;
    AdafactorTensor tensor = {.gradient = gradient.data(),
                              .row_moment = r.data(),
                              .column_moment = c.data(),
                              .rows = rows,
                              .columns = columns,
                              .weight_decay = 0.1f,
                              .rounding_site = 5};
    AdafactorTensor full = tensor;
    tensor.bf16_parameter = narrow.data();
    full.parameter = wide.data();
    full.row_moment = r2.data();
    full.column_moment = c2.data();
    const auto run = [](AdafactorTensor& t, uint64_t seed) {
      ASSERT_TRUE(Adafactor({}, {.tensors = {&t, 1}, .learning_rate = 0.01f, .seed = seed}).ok());
    };
    run(full, 1);
    run(tensor, 1);
    EXPECT_EQ(c, c2);
    double bias = 0, error = 0;
    for (size_t i = 0; i < count; ++i) {
      const double off = ToFloat(narrow[i]) - wide[i];
      EXPECT_LE(std::abs(off), std::abs(wide[i]) * 0x1p-7 + 1e-30);
      bias += off / static_cast<double>(count);
      error += off * off / static_cast<double>(count);
    }
    EXPECT_LT(std::abs(bias), 4 * std::sqrt(error / static_cast<double>(count)));
    // Other bits for another seed, the same for the same.
    const std::vector<BFloat16> first = narrow;
    const auto differ = [&](uint64_t seed) {
      narrow = start;
      std::fill(r.begin(), r.end(), 0.0f);
      std::fill(c.begin(), c.end(), 0.0f);
      tensor.bf16_parameter = narrow.data();
      run(tensor, seed);
      size_t differing = 0;
      for (size_t i = 0; i < count; ++i) differing += narrow[i].bits != first[i].bits ? 1 : 0;
      return differing;
    };
    EXPECT_EQ(differ(1), 0u);
    EXPECT_GT(differ(2), count / 10);
  }
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
