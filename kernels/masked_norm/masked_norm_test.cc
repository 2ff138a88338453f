#include "kernels/masked_norm/masked_norm.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/layer_norm/layer_norm_ref.h"
#include "kernels/masked_norm/masked_norm_ref.h"
#include "kernels/rms_norm/rms_norm_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using Values = std::vector<double>;

Values Draw(PhiloxStream& rng, size_t count) {
  Values values(count);
  for (double& value : values) value = rng.Normal();
  return values;
}

TEST(MaskedNorm, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::MaskedNormCases()), "");
}

TEST(MaskedNorm, ReferenceGradientsAreThoseOfFiniteDifferences) {
  constexpr double kEpsilon = 1e-3;
  const Values mask = {1, 1, 1, 0.3, 0.3, 0.7, 0};
  for (const bool layer : {true, false}) {
    PhiloxStream rng({.seed = 7, .step = 0, .site = 0});
    const Values x = Draw(rng, 3 * 7), dy = Draw(rng, 3 * 7), weight = Draw(rng, 7);
    const Values bias = layer ? Draw(rng, 7) : Values();
    const auto loss = [&](const Values& at, const Values& w, const Values& b) {
      const Values y = ref::MaskedNorm(at, w, b, mask, kEpsilon).y;
      return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
    };
    const auto gradient = ref::MaskedNormBackward(dy, x, weight, layer, mask, kEpsilon);
    EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(v, weight, bias); }, x,
                                        gradient.dx),
              "");
    EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(x, v, bias); }, weight,
                                        gradient.dweight),
              "");
    if (!layer) continue;
    EXPECT_EQ(testing::GradientMismatch([&](const Values& v) { return loss(x, weight, v); }, bias,
                                        gradient.dbias),
              "");
  }
}

TEST(MaskedNorm, AMaskOfOnesIsThePlainNormAndColumnsAtZeroAreAsIfNotThere) {
  constexpr double kEpsilon = 1e-3;
  PhiloxStream rng({.seed = 8, .step = 0, .site = 0});
  const Values x = Draw(rng, 2 * 5), weight = Draw(rng, 5), bias = Draw(rng, 5);
  const Values ones(5, 1.0);
  // The same rows with two more columns.
  Values wider, more_weight = weight, more_bias = bias;
  for (size_t r = 0; r < 2; ++r) {
    wider.insert(wider.end(), x.begin() + r * 5, x.begin() + (r + 1) * 5);
    wider.insert(wider.end(), {100, -70});
  }
  more_weight.insert(more_weight.end(), {3, 4});
  more_bias.insert(more_bias.end(), {5, 6});
  const Values mask = {1, 1, 1, 1, 1, 0, 0};
  for (const bool layer : {true, false}) {
    const Values plain = layer ? ref::LayerNorm(x, {}, weight, bias, kEpsilon).y
                               : ref::RmsNorm(x, weight, kEpsilon).y;
    const Values none;
    const Values masked = ref::MaskedNorm(x, weight, layer ? bias : none, ones, kEpsilon).y;
    const Values wide =
        ref::MaskedNorm(wider, more_weight, layer ? more_bias : none, mask, kEpsilon).y;
    for (size_t r = 0; r < 2; ++r) {
      for (size_t c = 0; c < 7; ++c) {
        EXPECT_NEAR(wide[r * 7 + c], c < 5 ? plain[r * 5 + c] : 0, 1e-14);
        if (c >= 5) continue;
        EXPECT_NEAR(masked[r * 5 + c], plain[r * 5 + c], 1e-14);
      }
    }
  }
}

TEST(MaskedNorm, RefusesArgumentsThatDoNotFit) {
  using testing::TestTensor;
  TestTensor x(DType::kF32, {2, 4}), columns(DType::kF32, {4}), rows(DType::kF32, {2});
  MaskedNormForwardArgs args{.residual = x.view(),
                             .delta = {},
                             .residual_out = {},
                             .weight = columns.view(),
                             .bias = {},
                             .mask = rows.view(),
                             .y = x.view(),
                             .mean = {},
                             .scale = rows.view()};
  EXPECT_EQ(MaskedNormForward({}, args).ToString(),
            "INVALID: MaskedNormForward: mask has shape [2] instead of [4]");
  args.mask = columns.view();
  EXPECT_TRUE(MaskedNormForward({}, args).ok());
  args.bias = columns.view();
  EXPECT_EQ(MaskedNormForward({}, args).code(), StatusCode::kInvalid) << "no mean";
  EXPECT_EQ(MaskedNormForward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(MaskedNormBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
