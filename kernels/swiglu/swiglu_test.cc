#include "kernels/swiglu/swiglu.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/activation/activation_ref.h"
#include "kernels/cpu/isa.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(SwiGlu, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::SwiGluCases()), "");
}

TEST(SwiGlu, ReferenceDerivativeIsThatOfFiniteDifferences) {
  std::vector<double> x, derivative;
  for (double at = -9; at <= 9; at += 0.13) {
    x.push_back(at);
    derivative.push_back(ref::SiluDerivative(at));
  }
  auto sum = [](const std::vector<double>& values) {
    double total = 0;
    for (double value : values) total += ref::Silu(value);
    return total;
  };
  EXPECT_EQ(testing::GradientMismatch(sum, x, derivative), "");
}

TEST(SwiGlu, ExtremeInputsGiveTheirLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    std::array<float, 6> gate = {-1e20f, 1e20f, kInfinity, 0.0f, -100.0f, std::nanf("")};
    std::array<float, 6> dy, up, y, dgate, dup;
    dy.fill(2.0f);
    up.fill(3.0f);
    const auto view = [](std::array<float, 6>& values) {
      return TensorView(values.data(), DType::kF32, {1, 6});
    };
    ASSERT_TRUE(SwiGluBackward({}, {.dy = view(dy),
                                    .gate = view(gate),
                                    .up = view(up),
                                    .dgate = view(dgate),
                                    .dup = view(dup),
                                    .y = view(y)})
                    .ok());
    const auto near = ::testing::NanSensitiveFloatNear(1e-30f);
    EXPECT_THAT(
        y, ::testing::Pointwise(near, std::array<float, 6>{0, 3e20f, kInfinity, 0, 0, gate[5]}));
    EXPECT_THAT(
        dup, ::testing::Pointwise(near, std::array<float, 6>{0, 2e20f, kInfinity, 0, 0, gate[5]}));
    EXPECT_THAT(dgate, ::testing::Pointwise(near, std::array<float, 6>{0, 6, 6, 3, 0, gate[5]}));
  }
}

TEST(SwiGlu, ExtremeGatesOfGeluGiveTheirLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const GateFunction function : {GateFunction::kGelu, GateFunction::kErfGelu}) {
    std::array<float, 6> gate = {-1e20f, 1e20f, kInfinity, 0.0f, -100.0f, std::nanf("")};
    std::array<float, 6> up, y;
    up.fill(3.0f);
    const auto view = [](std::array<float, 6>& values) {
      return TensorView(values.data(), DType::kF32, {1, 6});
    };
    ASSERT_TRUE(
        SwiGluForward({}, {.gate = view(gate), .up = view(up), .y = view(y), .function = function})
            .ok());
    EXPECT_THAT(y, ::testing::Pointwise(::testing::NanSensitiveFloatNear(1e-30f),
                                        std::array<float, 6>{0, 3e20f, kInfinity, 0, 0, gate[5]}));
  }
}

TEST(SwiGlu, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  TensorView four(memory.data(), DType::kF32, {2, 4});
  TensorView three(memory.data(), DType::kF32, {2, 3});
  EXPECT_EQ(SwiGluForward({}, {.gate = four, .up = three, .y = four}).ToString(),
            "INVALID: SwiGluForward: up has shape [2, 3] instead of [2, 4]");
  EXPECT_EQ(SwiGluForward({}, {}).code(), StatusCode::kInvalid);
  EXPECT_EQ(SwiGluBackward({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
