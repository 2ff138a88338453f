#include "kernels/testing/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/test_tensor.h"

namespace weft::kernels::testing {
namespace {

constexpr Tolerance kTight = {1e-6, 1e-6};

TEST(Compare, AcceptsErrorsWithinToleranceOnly) {
  std::vector<double> want = {1, -2, 3}, near = {1 + 1e-7, -2, 3}, far = {1, -2, 3.0001};
  EXPECT_EQ(Mismatch(near, want, kTight), "");
  EXPECT_NE(Mismatch(far, want, kTight), "");
  EXPECT_NE(Mismatch(std::vector<double>{1, -2}, want, kTight), "");
}

TEST(Compare, SeesUnwrittenAndNonFiniteElements) {
  double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  std::vector<double> want = {1, 2};
  EXPECT_NE(Mismatch(std::vector<double>{1, nan}, want, kTight), "");
  EXPECT_NE(Mismatch(want, std::vector<double>{1, nan}, kTight), "");
  EXPECT_NE(Mismatch(std::vector<double>{1, infinity}, std::vector<double>{1, -infinity}, kTight),
            "");
  EXPECT_EQ(Mismatch(std::vector<double>{1, infinity}, std::vector<double>{1, infinity}, kTight),
            "");
}

TEST(Compare, SmallBiasInEveryElementExceedsTheNorm) {
  std::vector<double> want(1000, 1.0), biased(1000, 1.0 + 0.9 * 0x1.0p-7);
  Tolerance bf16 = ToleranceFor(DType::kBF16, 1);
  EXPECT_LE(0.9 * 0x1.0p-7, bf16.element);
  EXPECT_NE(Mismatch(biased, want, bf16), "");
}

TEST(Compare, GradientOfACubeIsChecked) {
  auto cube = [](const std::vector<double>& x) { return x[0] * x[0] * x[0] + 2 * x[1]; };
  EXPECT_EQ(GradientMismatch(cube, {1.5, -1}, std::vector<double>{6.75, 2}), "");
  EXPECT_NE(GradientMismatch(cube, {1.5, -1}, std::vector<double>{6.76, 2}), "");
}

TEST(TestTensor, ManyElementsRepeatInWholeRowsAndAreNeverZero) {
  PhiloxStream rng({.seed = 4});
  constexpr int64_t kWidth = 1000, kRows = TestTensor::kMostDrawn / kWidth;
  TestTensor flat(DType::kF32, {TestTensor::kMostDrawn + 5});
  TestTensor padded(DType::kF32, {kRows + 2, kWidth}, 3);
  for (const auto& [tensor, period] :
       {std::pair(&flat, TestTensor::kMostDrawn), std::pair(&padded, kRows * kWidth)}) {
    tensor->Random(rng).Absolute();
    const std::vector<double> values = tensor->Values();
    for (size_t i = period; i < values.size(); ++i) ASSERT_EQ(values[i], values[i - period]);
    EXPECT_GT(*std::min_element(values.begin(), values.end()), 0);
    EXPECT_NE(values[0], values[1]);
    EXPECT_TRUE(tensor->GuardsIntact());
  }
}

TEST(TestTensor, SeesWritesBetweenAndBehindItsRows) {
  PhiloxStream rng({.seed = 3});
  TestTensor tensor(DType::kF32, {3, 4}, 2);
  tensor.Random(rng);
  EXPECT_TRUE(tensor.GuardsIntact());
  auto* data = tensor.view().As<float>();
  data[6 + 4] = 0;
  EXPECT_FALSE(tensor.GuardsIntact());
  tensor.Reset();
  EXPECT_TRUE(tensor.GuardsIntact());
  data[3 * 6] = 0;
  EXPECT_FALSE(tensor.GuardsIntact());
}

TEST(TestTensor, HoldsValuesOfEveryTypeAndReturnsToThem) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU16, DType::kU8,
                      DType::kF8E4M3, DType::kF8E5M2}) {
    TestTensor tensor(dtype, {2, 2}, 1);
    tensor.Assign({1, 2, 3, 4});
    *static_cast<uint8_t*>(tensor.view().data) = 0x55;
    EXPECT_NE(tensor.Values(), tensor.InitialValues());
    tensor.Reset();
    EXPECT_EQ(tensor.Values(), (std::vector<double>{1, 2, 3, 4})) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace weft::kernels::testing
