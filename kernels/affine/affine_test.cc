#include "kernels/affine/affine.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/affine/affine_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Affine, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::AffineCases()), "");
}

TEST(Affine, ReferenceSumsAreTheDerivativesOfItsForwardPass) {
  const std::vector<double> x = {0.3, -1.2, 2.0, 0.7, -0.4, 1.1};
  const std::vector<double> dy = {1.0, 0.5, -2.0, 0.25, 3.0, -1.0};
  for (const std::vector<double>& scale : {std::vector<double>{0.5, -2.0, 1.5}, {0.7}}) {
    const auto loss = [&](const std::vector<double>& at) {
      const auto y = ref::Affine(x, at, {0.1}, 3);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
      return sum;
    };
    EXPECT_EQ(testing::GradientMismatch(loss, scale, ref::ColumnSums(dy, x, 3, scale.size())), "");
  }
}

TEST(Affine, WithoutAScaleOrAShiftTheyAreOneAndZero) {
  std::array<float, 4> x = {1, 2, 3, 4}, y{}, shift = {10, 20}, dx{};
  const TensorView in(x.data(), DType::kF32, {2, 2}), out(y.data(), DType::kF32, {2, 2});
  const TensorView addend(shift.data(), DType::kF32, {2});
  ASSERT_TRUE(AffineForward({}, {in, {}, addend, out}).ok());
  EXPECT_EQ(y, (std::array<float, 4>{11, 22, 13, 24}));
  ASSERT_TRUE(AffineForward({}, {in, addend, {}, out}).ok());
  EXPECT_EQ(y, (std::array<float, 4>{10, 40, 30, 80}));
  AffineBackwardArgs backward;
  backward.dy = in;
  backward.dx = TensorView(dx.data(), DType::kF32, {2, 2});
  ASSERT_TRUE(AffineBackward({}, backward).ok());
  EXPECT_EQ(dx, x);
}

TEST(Affine, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  const TensorView four(memory.data(), DType::kF32, {2, 4});
  const TensorView three(memory.data(), DType::kF32, {3});
  EXPECT_EQ(AffineForward({}, {four, three, {}, four}).ToString(),
            "INVALID: AffineForward: scale has shape [3] instead of [4]");
  EXPECT_EQ(AffineForward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(AffineBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
