#include "kernels/rope/rope.h"

#include <array>
#include <cmath>
#include <complex>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/rope/rope_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Rope, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::RopeCases()), "");
}

TEST(Rope, ReferenceMultipliesByAUnitComplexNumberAndItsInverseIsTheGradient) {
  const std::vector<double> angles = {0.3, -1.1, 2.5};
  std::vector<double> cosines, sines;
  for (double angle : angles) {
    cosines.push_back(std::cos(angle));
    sines.push_back(std::sin(angle));
  }
  const std::vector<double> x = {0.4, -0.2, 1.3, 0.7, 2.1, -0.9};
  const std::vector<double> y = ref::Rope(x, cosines, sines, false);
  for (size_t j = 0; j < 3; ++j) {
    const auto turned = std::complex(x[j], x[j + 3]) * std::polar(1.0, angles[j]);
    EXPECT_NEAR(y[j], turned.real(), 1e-12);
    EXPECT_NEAR(y[j + 3], turned.imag(), 1e-12);
  }
  const std::vector<double> dy = {1.5, 0.3, -0.4, 0.8, -1.2, 0.6};
  const auto loss = [&](const std::vector<double>& at) {
    const std::vector<double> out = ref::Rope(at, cosines, sines, false);
    return std::inner_product(out.begin(), out.end(), dy.begin(), 0.0);
  };
  EXPECT_EQ(testing::GradientMismatch(loss, x, ref::Rope(dy, cosines, sines, true)), "");
}

TEST(Rope, RefusesArgumentsThatDoNotFit) {
  std::array<float, 16> memory{};
  std::array<int32_t, 2> at = {0, 1};
  RopeArgs args{TensorView(memory.data(), DType::kF32, {2, 8}),
                TensorView(at.data(), DType::kI32, {2}),
                TensorView(memory.data(), DType::kF32, {2, 4}),
                TensorView(memory.data(), DType::kF32, {2, 4})};
  EXPECT_TRUE(Rope({}, args).ok());
  at[1] = 2;
  EXPECT_EQ(Rope({}, args).ToString(), "INVALID: Rope: positions[1] is 2, outside of [0, 2)");
  at[1] = -1;
  EXPECT_EQ(Rope({}, args).code(), StatusCode::kInvalid);
  at[1] = 0;
  args.cosines = args.sines = TensorView(memory.data(), DType::kF32, {2, 3});
  EXPECT_EQ(Rope({}, args).code(), StatusCode::kInvalid) << "heads of 6 in 8 columns";
  EXPECT_EQ(Rope({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
