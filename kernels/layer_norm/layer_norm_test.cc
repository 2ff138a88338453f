#include "kernels/layer_norm/layer_norm.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/layer_norm/layer_norm_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(LayerNorm, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::LayerNormCases()), "");
}

TEST(LayerNorm, ReferenceGradientsAreThoseOfFiniteDifferences) {
  PhiloxStream rng({.seed = 7, .step = 0, .site = 0});
  auto draw = [&rng](size_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = rng.Normal();
    return values;
  };
  constexpr double kEpsilon = 1e-3;
  std::vector<double> x = draw(3 * 7), dy = draw(3 * 7), weight = draw(7), bias = draw(7);
  auto loss = [&](const std::vector<double>& at, const std::vector<double>& w,
                  const std::vector<double>& b) {
    std::vector<double> y = ref::LayerNorm(at, {}, w, b, kEpsilon).y;
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  };
  auto gradient = ref::LayerNormBackward(dy, x, weight, kEpsilon);
  using Values = std::vector<double>;
  EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(v, weight, bias); }, x,
                                      gradient.dx),
            "");
  EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(x, v, bias); }, weight,
                                      gradient.dweight),
            "");
  EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(x, weight, v); }, bias,
                                      gradient.dbias),
            "");
}

TEST(LayerNorm, ConstantRowGivesTheBias) {
  std::array<float, 20> x;
  x.fill(1000.25f);
  std::array<float, 20> weight, bias, y;
  weight.fill(3.0f);
  std::iota(bias.begin(), bias.end(), 0.0f);
  float mean = 0, rstd = 0;
  LayerNormForwardArgs args;
  args.residual = TensorView(x.data(), DType::kF32, {1, 20});
  args.weight = TensorView(weight.data(), DType::kF32, {20});
  args.bias = TensorView(bias.data(), DType::kF32, {20});
  args.y = TensorView(y.data(), DType::kF32, {1, 20});
  args.mean = TensorView(&mean, DType::kF32, {1});
  args.rstd = TensorView(&rstd, DType::kF32, {1});
  ASSERT_TRUE(LayerNormForward({}, args).ok());
  EXPECT_EQ(y, bias);
}

TEST(LayerNorm, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  TensorView rows(memory.data(), DType::kF32, {2, 4});
  TensorView columns(memory.data(), DType::kF32, {4});
  TensorView pair(memory.data(), DType::kF32, {2});
  LayerNormForwardArgs args;
  args.residual = rows;
  args.weight = columns;
  args.bias = pair;
  args.y = rows;
  args.mean = pair;
  args.rstd = pair;
  EXPECT_EQ(LayerNormForward({}, args).ToString(),
            "INVALID: LayerNormForward: bias has shape [2] instead of [4]");
  args.bias = columns;
  args.delta = rows;
  EXPECT_EQ(LayerNormForward({}, args).code(), StatusCode::kInvalid) << "no residual_out";
  EXPECT_EQ(LayerNormForward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(LayerNormBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
