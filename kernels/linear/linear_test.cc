#include "kernels/linear/linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/linear/linear_ref.h"
#include "kernels/linear/matmul.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/compare.h"

namespace weft::kernels {
namespace {

using testing::GradientMismatch;

TEST(Linear, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::LinearCases()), "");
}

TEST(Linear, ReferenceGradientsAreThoseOfTheReferenceForward) {
  constexpr int64_t kRows = 3, kIn = 4, kOut = 2;
  PhiloxStream rng({.seed = 5});
  auto draw = [&rng](int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = rng.Normal();
    return values;
  };
  std::vector<double> x = draw(kRows * kIn), w = draw(kOut * kIn), b = draw(kOut);
  std::vector<double> dy = draw(kRows * kOut);
  auto loss = [&](std::span<const double> x_, std::span<const double> w_,
                  std::span<const double> b_) {
    std::vector<double> y = LinearForwardRef(x_, w_, b_, kRows, kIn, kOut);
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  };
  EXPECT_EQ(GradientMismatch([&](const std::vector<double>& v) { return loss(v, w, b); }, x,
                             LinearBackwardInputRef(dy, w, {}, kRows, kIn, kOut)),
            "");
  EXPECT_EQ(GradientMismatch([&](const std::vector<double>& v) { return loss(x, v, b); }, w,
                             LinearBackwardWeightRef(x, dy, {}, kRows, kIn, kOut)),
            "");
  EXPECT_EQ(GradientMismatch([&](const std::vector<double>& v) { return loss(x, w, v); }, b,
                             BiasGradientRef(dy, {}, kRows, kOut)),
            "");
}

TEST(Linear, PackingAgainUsesTheNewWeights) {
  std::array<float, 4> w = {1, 2, 3, 4}, x = {1, 1}, y{};
  TensorView master(w.data(), DType::kF32, {2, 2});
  auto weight = NewPackedWeight({}, 2, 2, DType::kF32);
  ASSERT_TRUE(weight.ok()) << weight.status().ToString();
  EXPECT_EQ((*weight)->Bytes() > 0, cpu::ActiveIsa() >= cpu::Isa::kAvx512);
  for (float factor : {1.0f, 10.0f}) {
    for (float& value : w) value *= factor;
    ASSERT_TRUE((*weight)->Pack({}, master).ok());
    Status status = LinearForward({}, {.x = TensorView(x.data(), DType::kF32, {1, 2}),
                                       .weight = weight->get(),
                                       .y = TensorView(y.data(), DType::kF32, {1, 2})});
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(y[0], 3 * factor);
    EXPECT_EQ(y[1], 7 * factor);
  }
}

TEST(Linear, NanAndInfinityPassThrough) {
  std::array<float, 4> w = {1, 0, 0, 1}, y{};
  std::array<float, 4> x = {std::numeric_limits<float>::infinity(), 1,
                            std::numeric_limits<float>::quiet_NaN(), 1};
  auto weight = NewPackedWeight({}, 2, 2, DType::kF32);
  ASSERT_TRUE(weight.ok());
  ASSERT_TRUE((*weight)->Pack({}, TensorView(w.data(), DType::kF32, {2, 2})).ok());
  ASSERT_TRUE(LinearForward({}, {.x = TensorView(x.data(), DType::kF32, {2, 2}),
                                 .weight = weight->get(),
                                 .y = TensorView(y.data(), DType::kF32, {2, 2})})
                  .ok());
  EXPECT_TRUE(std::isinf(y[0]));
  EXPECT_TRUE(std::isnan(y[2]));
}

// Sizes that kernels of our own serve, whose products are sums of several.
TEST(Linear, NanInfinityAndTheLargestNumbersPassThroughSplitProducts) {
  constexpr int64_t kRows = 70, kIn = 64, kOut = 96;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kLargest = std::numeric_limits<float>::max(), kTiny = 0x1p-120f;
  PhiloxStream rng({.seed = 9});
  auto draw = [&rng](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(rng.Normal());
    return values;
  };
  auto wide = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  std::vector<float> x = draw(kRows * kIn), w = draw(kOut * kIn), dy = draw(kRows * kOut);
  for (int64_t o = 0; o < kOut; ++o) w[o * kIn + 7] = dy[10 * kOut + o] = kTiny;
  x[10 * kIn + 7] = kLargest;
  x[3 * kIn + 5] = kInfinity;
  x[40 * kIn + 60] = -kInfinity;
  x[69 * kIn + 1] = -kNan;
  w[50 * kIn + 5] = 0;
  w[20 * kIn + 33] = kInfinity;
  w[21 * kIn + 60] = kInfinity;
  w[22 * kIn + 1] = kInfinity;
  dy[33 * kOut + 64] = kInfinity;
  dy[34 * kOut + 20] = -kLargest;
  for (int64_t i = 0; i < kIn; ++i) w[20 * kIn + i] = std::copysign(kTiny, w[20 * kIn + i]);
  for (int64_t i = 0; i < kIn; ++i) x[34 * kIn + i] = std::copysign(kTiny, x[34 * kIn + i]);
  w[20 * kIn + 33] = kInfinity;

  for (cpu::Isa isa : {cpu::ProcessIsa(), std::min(cpu::ProcessIsa(), cpu::Isa::kAvx512)}) {
    SCOPED_TRACE(cpu::IsaName(isa));
    cpu::ScopedIsa scoped(isa);
    std::vector<float> y(kRows * kOut), dx(kRows * kIn), dw(kOut * kIn);
    TensorView x_view(x.data(), DType::kF32, {kRows, kIn});
    TensorView dy_view(dy.data(), DType::kF32, {kRows, kOut});
    auto weight = NewPackedWeight({}, kOut, kIn, DType::kF32);
    ASSERT_TRUE(weight.ok());
    ASSERT_TRUE((*weight)->Pack({}, TensorView(w.data(), DType::kF32, {kOut, kIn})).ok());
    ASSERT_TRUE(LinearForward({}, {.x = x_view,
                                   .weight = weight->get(),
                                   .y = TensorView(y.data(), DType::kF32, {kRows, kOut})})
                    .ok());
    ASSERT_TRUE(LinearBackwardInput({}, {.dy = dy_view,
                                         .weight = weight->get(),
                                         .dx = TensorView(dx.data(), DType::kF32, {kRows, kIn})})
                    .ok());
    ASSERT_TRUE(
        LinearBackwardWeight({}, {.x = x_view,
                                  .dy = dy_view,
                                  .dweight = TensorView(dw.data(), DType::kF32, {kOut, kIn}),
                                  .accumulate = false})
            .ok());
    auto tolerance = [](int64_t terms) { return testing::ToleranceFor(DType::kF32, terms); };
    EXPECT_EQ(testing::Mismatch(wide(y), LinearForwardRef(wide(x), wide(w), {}, kRows, kIn, kOut),
                                tolerance(kIn)),
              "");
    EXPECT_EQ(
        testing::Mismatch(wide(dx), LinearBackwardInputRef(wide(dy), wide(w), {}, kRows, kIn, kOut),
                          tolerance(kOut)),
        "");
    EXPECT_EQ(testing::Mismatch(wide(dw),
                                LinearBackwardWeightRef(wide(x), wide(dy), {}, kRows, kIn, kOut),
                                tolerance(kRows)),
              "");
  }
}

TEST(Linear, NoRowsIsNoWork) {
  std::array<float, 6> w{}, dw;
  dw.fill(7);
  TensorView none(w.data(), DType::kF32, {0, 3}), none_out(w.data(), DType::kF32, {0, 2});
  TensorView dweight(dw.data(), DType::kF32, {2, 3});
  auto weight = NewPackedWeight({}, 2, 3, DType::kF32);
  ASSERT_TRUE(weight.ok());
  ASSERT_TRUE((*weight)->Pack({}, TensorView(w.data(), DType::kF32, {2, 3})).ok());
  EXPECT_TRUE(LinearForward({}, {.x = none, .weight = weight->get(), .y = none_out}).ok());
  EXPECT_TRUE(LinearBackwardWeight({}, {.x = none, .dy = none_out, .dweight = dweight}).ok());
  EXPECT_EQ(dw[0], 7);
  EXPECT_TRUE(
      LinearBackwardWeight({}, {.x = none, .dy = none_out, .dweight = dweight, .accumulate = false})
          .ok());
  EXPECT_EQ(dw[5], 0);
}

TEST(Linear, RefusesArgumentsThatDoNotFit) {
  std::array<float, 16> memory{};
  TensorView two_by_two(memory.data(), DType::kF32, {2, 2});
  TensorView two_by_three(memory.data(), DType::kF32, {2, 3});
  TensorView half(memory.data(), DType::kBF16, {2, 2});
  auto weight = NewPackedWeight({}, 2, 2, DType::kF32);
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(LinearForward({}, {.x = two_by_two, .y = two_by_two}).ToString(),
            "INVALID: LinearForward: weight is missing or not on the CPU");
  EXPECT_EQ(
      LinearForward({}, {.x = two_by_three, .weight = weight->get(), .y = two_by_two}).ToString(),
      "INVALID: LinearForward: x has shape [2, 3] instead of [2, 2]");
  EXPECT_EQ(LinearForward({}, {.x = half, .weight = weight->get(), .y = two_by_two}).ToString(),
            "INVALID: LinearForward: x is bf16, not f32");
  EXPECT_EQ(LinearForward({}, {.x = two_by_two,
                               .weight = weight->get(),
                               .bias = TensorView(memory.data(), DType::kF32, {2}),
                               .y = two_by_two,
                               .accumulate = true})
                .ToString(),
            "INVALID: LinearForward: accumulate, with a bias or `active`");
  EXPECT_EQ(LinearBackwardInput({}, {.dy = two_by_three, .weight = weight->get(), .dx = two_by_two})
                .code(),
            StatusCode::kInvalid);
  EXPECT_EQ(LinearBackwardWeight({}, {.x = two_by_two, .dy = half, .dweight = two_by_two}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ((*weight)->Pack({}, two_by_three).code(), StatusCode::kInvalid);
  EXPECT_EQ(NewPackedWeight({}, 0, 2, DType::kF32).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(NewPackedWeight({}, 2, 2, DType::kI32).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(NewPackedWeight({DeviceType::kCuda, 1000}, 2, 2, DType::kF32).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::kernels
