#include "kernels/moe_combine/moe_combine.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/moe_combine/moe_combine_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(MoeCombine, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::MoeCombineCases()), "");
}

TEST(MoeCombine, ReferenceGradientsAreThoseOfFiniteDifferences) {
  const int64_t k = 2, width = 2;
  const std::vector<double> places = {3, -1, 0, 2}, dy = {0.5, -1, 2, 0.25};
  std::vector<double> x = {1, 2, 3, 4, 5, 6, -7, 8}, weights = {0.3, 0.7, 0.6, 0.4};
  const auto gradients = ref::CombineBackward(dy, x, places, weights, k, width);
  const auto loss = [&](const std::vector<double>& of_x, const std::vector<double>& of_weights) {
    const std::vector<double> y = ref::Combine(of_x, places, of_weights, k, width);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  EXPECT_EQ(
      testing::GradientMismatch([&](const auto& at) { return loss(at, weights); }, x, gradients.dx),
      "");
  EXPECT_EQ(testing::GradientMismatch([&](const auto& at) { return loss(x, at); }, weights,
                                      gradients.dweights),
            "");
}

TEST(MoeCombine, NamesAPlaceThatIsOutOfRangeAndRefusesOtherShapes) {
  std::array<float, 4> x{}, weights{};
  std::array<int32_t, 2> place = {-1, 2};
  const TensorView rows(x.data(), DType::kF32, {2, 2});
  const TensorView places(place.data(), DType::kI32, {2, 1});
  const TensorView two(weights.data(), DType::kF32, {2, 1});
  EXPECT_EQ(MoeCombine({}, {rows, places, {}, rows}).ToString(),
            "INVALID: MoeCombine: places[1, 0] is 2, outside of [-1, 2)");
  EXPECT_EQ(MoeCombineBackward({}, {rows, rows, places, two, rows, two}).ToString(),
            "INVALID: MoeCombineBackward: places[1, 0] is 2, outside of [-1, 2)");
  place[1] = 1;
  EXPECT_EQ(MoeCombine({}, {rows, places, rows, rows}).ToString(),
            "INVALID: MoeCombine: weights has shape [2, 2] instead of [2, 1]");
  EXPECT_EQ(MoeCombine({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(MoeCombineBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
