#include "kernels/rms_norm/rms_norm.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/rms_norm/rms_norm_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(RmsNorm, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::RmsNormCases()), "");
}

TEST(RmsNorm, ReferenceGradientsAreThoseOfFiniteDifferences) {
  PhiloxStream rng({.seed = 7, .step = 0, .site = 0});
  auto draw = [&rng](size_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = rng.Normal();
    return values;
  };
  constexpr double kEpsilon = 1e-3;
  std::vector<double> x = draw(3 * 7), dy = draw(3 * 7), weight = draw(7);
  auto loss = [&](const std::vector<double>& at, const std::vector<double>& w) {
    std::vector<double> y = ref::RmsNorm(at, w, kEpsilon).y;
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  };
  auto gradient = ref::RmsNormBackward(dy, x, weight, kEpsilon);
  using Values = std::vector<double>;
  EXPECT_EQ(
      testing::GradientMismatch([&](const Values& v) { return loss(v, weight); }, x, gradient.dx),
      "");
  EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(x, v); }, weight,
                                      gradient.dweight),
            "");
}

TEST(RmsNorm, WithoutAWeightGradientTheInputsGradientIsTheSame) {
  constexpr int64_t kRows = 5, kWidth = 19;
  PhiloxStream rng({.seed = 3, .step = 0, .site = 0});
  testing::TestTensor dy(DType::kF32, {kRows, kWidth}), x(DType::kF32, {kRows, kWidth});
  testing::TestTensor weight(DType::kF32, {kWidth}), rrms(DType::kF32, {kRows});
  testing::TestTensor dweight(DType::kF32, {kWidth}), first(DType::kF32, {kRows, kWidth});
  testing::TestTensor second(DType::kF32, {kRows, kWidth});
  for (testing::TestTensor* t : {&dy, &x, &weight, &rrms, &dweight}) t->Random(rng);
  RmsNormBackwardArgs args{.dy = dy.view(),
                           .x = x.view(),
                           .weight = weight.view(),
                           .rrms = rrms.view(),
                           .dresidual = {},
                           .dx = first.view(),
                           .dweight = dweight.view()};
  ASSERT_TRUE(RmsNormBackward({}, args).ok());
  args.dx = second.view();
  args.dweight = {};
  ASSERT_TRUE(RmsNormBackward({}, args).ok());
  EXPECT_EQ(first.Values(), second.Values());
}

TEST(RmsNorm, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  TensorView rows(memory.data(), DType::kF32, {2, 4});
  TensorView columns(memory.data(), DType::kF32, {4});
  TensorView pair(memory.data(), DType::kF32, {2});
  RmsNormForwardArgs args;
  args.residual = rows;
  args.weight = pair;
  args.y = rows;
  args.rrms = pair;
  EXPECT_EQ(RmsNormForward({}, args).ToString(),
            "INVALID: RmsNormForward: weight has shape [2] instead of [4]");
  args.weight = columns;
  args.delta = rows;
  EXPECT_EQ(RmsNormForward({}, args).code(), StatusCode::kInvalid) << "no residual_out";
  EXPECT_EQ(RmsNormForward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(RmsNormBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
