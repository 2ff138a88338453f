#include "kernels/quantize_fp8/quantize_fp8.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tensors of one row and what becomes of them at scale 1.
struct Quantized {
  std::vector<double> codes, transposed;
  float amax = 0;
};

Quantized Quantize(const std::vector<double>& values, DType type) {
  const auto count = static_cast<int64_t>(values.size());
  TestTensor x(DType::kF32, {1, count}), scale(DType::kF32, {1}), amax(DType::kF32, {1});
  TestTensor q(type, {1, count}), transposed(type, {count, 16});
  x.Assign(values);
  scale.Assign({1});
  amax.Assign({0});
  const Status status = QuantizeFp8({}, {.x = x.view(),
                                         .scale = scale.view(),
                                         .q = q.view(),
                                         .transposed = transposed.view(),
                                         .amax = amax.view()});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return {q.Values(), transposed.Values(), static_cast<float>(amax.Values()[0])};
}

TEST(QuantizeFp8, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::QuantizeFp8Cases()), "");
}

TEST(QuantizeFp8, OverflowSaturatesAndANanStays) {
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const double largest = type == DType::kF8E4M3 ? 448 : 57344;
    const Quantized got = Quantize({1e30, -kInfinity, 0.0, NAN, -largest * 1.2}, type);
    EXPECT_EQ(got.codes[0], largest);
    EXPECT_EQ(got.codes[1], -largest);
    EXPECT_EQ(got.codes[2], 0);
    EXPECT_TRUE(std::isnan(got.codes[3]));
    EXPECT_EQ(got.codes[4], -largest);
    EXPECT_EQ(got.transposed[16], -largest);
    EXPECT_TRUE(std::isnan(got.amax)) << "a NaN is not overlooked";
    EXPECT_EQ(Quantize({1, -kInfinity}, type).amax, kInfinity);
  }
}

// In the normal range the error is at most half a step, a 16th or an 8th of x.
TEST(QuantizeFp8, TheErrorIsBoundedByTheFraction) {
  PhiloxStream rng({.seed = 2});
  std::vector<double> x;
  for (int i = 0; i < 4000; ++i) {
    x.push_back(std::ldexp(1 + UniformFloat(rng.Next()), static_cast<int>(rng.Below(12)) - 5));
  }
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const Quantized got = Quantize(x, type);
    const double bound = type == DType::kF8E4M3 ? 1.0 / 16 : 1.0 / 8;
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = std::abs(got.codes[i] - x[i]) / x[i];
      ASSERT_LE(error, bound / (1 + bound) + 1e-7) << x[i];
      squares += error * error;
    }
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(x.size())), 0.42 * bound, 0.05 * bound);
  }
}

// A tensor whose steps have these largest magnitudes, with room for three of them.
class History {
 public:
  float ScaleAfter(double amax) {
    amax_.Assign({amax});
    const Status status = UpdateFp8Scales({}, {.amax = amax_.view(),
                                               .history = history_.view(),
                                               .largest_code = largest_.view(),
                                               .scale = scale_.view(),
                                               .inverse_scale = inverse_.view(),
                                               .slot = step_++ % 3});
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(amax_.Values()[0], 0);
    EXPECT_EQ(static_cast<float>(inverse_.Values()[0]), 1 / scale());
    return scale();
  }
  History() {
    history_.Assign({0, 0, 0});
    largest_.Assign({448});
    scale_.Assign({1});
  }

 private:
  float scale() const { return static_cast<float>(scale_.Values()[0]); }

  TestTensor amax_{DType::kF32, {1}}, history_{DType::kF32, {1, 3}}, largest_{DType::kF32, {1}};
  TestTensor scale_{DType::kF32, {1}}, inverse_{DType::kF32, {1}};
  int64_t step_ = 0;
};

TEST(QuantizeFp8, ASpikeLowersTheScaleForAsLongAsTheHistoryHoldsIt) {
  History history;
  EXPECT_EQ(history.ScaleAfter(0), 1) << "nothing is known yet";
  EXPECT_EQ(history.ScaleAfter(7), 64);
  EXPECT_EQ(history.ScaleAfter(700), 0.64f);
  EXPECT_EQ(history.ScaleAfter(7), 0.64f);
  EXPECT_EQ(history.ScaleAfter(7), 0.64f);
  EXPECT_EQ(history.ScaleAfter(3.5), 64);
  EXPECT_EQ(history.ScaleAfter(kInfinity), 64) << "what is not finite does not count";
  EXPECT_EQ(history.ScaleAfter(NAN), 128);
  EXPECT_EQ(history.ScaleAfter(0), 128) << "an empty history changes nothing";
  EXPECT_EQ(history.ScaleAfter(1e-41), 0x1p126f) << "its inverse is a normal number";
}

TEST(QuantizeFp8, RefusesArgumentsThatDoNotFit) {
  TestTensor x(DType::kF32, {4, 16}), half(DType::kF16, {4, 16}), scale(DType::kF32, {1});
  TestTensor q(DType::kF8E4M3, {4, 16}), narrow(DType::kF8E4M3, {16, 3});
  TestTensor other(DType::kF8E5M2, {16, 4}), two(DType::kF32, {2});
  for (const QuantizeFp8Args& args : {
           QuantizeFp8Args{.x = half.view(), .scale = scale.view(), .q = q.view()},
           QuantizeFp8Args{.x = x.view(), .q = q.view()},
           QuantizeFp8Args{.x = x.view(), .scale = two.view(), .q = q.view()},
           QuantizeFp8Args{.x = x.view(), .scale = scale.view(), .q = x.view()},
           QuantizeFp8Args{.x = x.view(), .scale = scale.view(), .transposed = narrow.view()},
           QuantizeFp8Args{
               .x = x.view(), .scale = scale.view(), .q = q.view(), .transposed = other.view()},
           QuantizeFp8Args{.x = x.view(), .amax = two.view()},
       }) {
    EXPECT_EQ(QuantizeFp8({}, args).code(), StatusCode::kInvalid);
  }
  TestTensor history(DType::kF32, {1, 4});
  UpdateFp8ScalesArgs args{.amax = scale.view(),
                           .history = history.view(),
                           .largest_code = scale.view(),
                           .scale = scale.view(),
                           .inverse_scale = scale.view(),
                           .slot = 4};
  EXPECT_EQ(UpdateFp8Scales({}, args).code(), StatusCode::kInvalid);
  args.slot = 0;
  args.margin = 33;
  EXPECT_EQ(UpdateFp8Scales({}, args).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
