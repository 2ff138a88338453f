#include "kernels/activation/activation.h"

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

TEST(Gelu, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::ActivationCases()), "");
}

constexpr std::array kForms = {GeluForm::kTanh, GeluForm::kErf};

TEST(Gelu, ReferenceDerivativeIsThatOfFiniteDifferences) {
  for (GeluForm form : kForms) {
    const ref::UnitFunctions gelu = ref::GeluOf(form);
    std::vector<double> x, derivative;
    for (double at = -6; at <= 6; at += 0.13) {
      x.push_back(at);
      derivative.push_back(gelu.derivative(at));
    }
    auto sum = [&](const std::vector<double>& values) {
      double total = 0;
      for (double value : values) total += gelu.value(value);
      return total;
    };
    EXPECT_EQ(testing::GradientMismatch(sum, x, derivative), "");
  }
}

TEST(Gelu, ErrorStaysBelowTheStatedBoundFromEndToEndOfTheRange) {
  std::vector<float> x;
  for (double at = -40; at <= 40; at += 0.00037) x.push_back(static_cast<float>(at));
  auto count = static_cast<int64_t>(x.size());
  std::vector<float> ones(x.size(), 1.0f), y(x.size()), dx(x.size());
  for (GeluForm form : kForms) {
    const ref::UnitFunctions gelu = ref::GeluOf(form);
    for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
      cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
      ASSERT_TRUE(GeluBackward({}, {.dy = TensorView(ones.data(), DType::kF32, {count}),
                                    .x = TensorView(x.data(), DType::kF32, {count}),
                                    .dx = TensorView(dx.data(), DType::kF32, {count}),
                                    .y = TensorView(y.data(), DType::kF32, {count}),
                                    .form = form})
                      .ok());
      double worst = 0, worst_derivative = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        double scale = 1 + std::abs(x[i]);
        worst = std::fmax(worst, std::abs(y[i] - gelu.value(x[i])) / scale);
        worst_derivative = std::fmax(worst_derivative, std::abs(dx[i] - gelu.derivative(x[i])));
      }
      EXPECT_LT(worst, 3e-7) << level;
      EXPECT_LT(worst_derivative, 1e-6) << level;
    }
  }
}

TEST(Gelu, ExtremeInputsGiveTheirLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::array<float, 6> x = {-1e20f, 1e20f, kInfinity, 0.0f, -50.0f, std::nanf("")};
  std::array<float, 6> dy, y, dx;
  dy.fill(2.0f);
  for (GeluForm form : kForms) {
    ASSERT_TRUE(GeluBackward({}, {.dy = TensorView(dy.data(), DType::kF32, {6}),
                                  .x = TensorView(x.data(), DType::kF32, {6}),
                                  .dx = TensorView(dx.data(), DType::kF32, {6}),
                                  .y = TensorView(y.data(), DType::kF32, {6}),
                                  .form = form})
                    .ok());
    EXPECT_THAT(y, ::testing::Pointwise(::testing::NanSensitiveFloatNear(1e-30f),
                                        std::array<float, 6>{0, 1e20f, kInfinity, 0, 0, x[5]}));
    // The error function is an approximation, which at its ends is not quite 1.
    const float near = form == GeluForm::kErf ? 2e-7f : 1e-30f;
    EXPECT_THAT(dx, ::testing::Pointwise(::testing::NanSensitiveFloatNear(near),
                                         std::array<float, 6>{0, 2, 2, 1, 0, x[5]}));
  }
}

TEST(Gelu, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  TensorView four(memory.data(), DType::kF32, {4});
  TensorView three(memory.data(), DType::kF32, {3});
  EXPECT_EQ(GeluForward({}, {.x = four, .y = three}).ToString(),
            "INVALID: GeluForward: y has shape [3] instead of [4]");
  EXPECT_EQ(GeluBackward({}, {.dy = four, .x = four, .dx = four, .y = four}).code(),
            StatusCode::kInvalid)
      << "y would overwrite x";
}

TEST(Unit, ErrorStaysBelowTheStatedBoundFromEndToEndOfTheRange) {
  std::vector<float> x;
  for (double at = -100; at <= 100; at += 0.0037) x.push_back(static_cast<float>(at));
  x.push_back(0.0f);
  const auto count = static_cast<int64_t>(x.size());
  std::vector<float> ones(x.size(), 1.0f), y(x.size()), dx(x.size());
  for (const UnitFunction function : {UnitFunction::kRelu, UnitFunction::kSilu}) {
    const ref::UnitFunctions unit = ref::UnitOf(function);
    for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
      cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
      ASSERT_TRUE(UnitBackward({}, {.dy = TensorView(ones.data(), DType::kF32, {count}),
                                    .x = TensorView(x.data(), DType::kF32, {count}),
                                    .dx = TensorView(dx.data(), DType::kF32, {count}),
                                    .y = TensorView(y.data(), DType::kF32, {count}),
                                    .function = function})
                      .ok());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(y[i], unit.value(x[i]), 3e-7 * (1 + std::abs(x[i]))) << x[i];
        ASSERT_NEAR(dx[i], unit.derivative(x[i]), 1e-6) << x[i];
      }
    }
  }
}

TEST(Unit, ANumberThatIsNoneStaysSo) {
  std::array<float, 2> x = {std::nanf(""), -std::numeric_limits<float>::infinity()}, y{};
  for (const UnitFunction function : {UnitFunction::kRelu, UnitFunction::kSilu}) {
    ASSERT_TRUE(UnitForward({}, {.x = TensorView(x.data(), DType::kF32, {2}),
                                 .y = TensorView(y.data(), DType::kF32, {2}),
                                 .function = function})
                    .ok());
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_NEAR(y[1], 0, 1e-30);
  }
}

TEST(SquaredRelu, KeepsTheTwoLargestOfFour) {
  std::array<float, 8> x = {3, 1, 3, 3, -1, -2, 5, -3}, y{}, dx{};
  std::array<float, 8> dy = {1, 1, 1, 1, 2, 2, 2, 2};
  const auto view = [](std::array<float, 8>& values, int64_t count = 8) {
    return TensorView(values.data(), DType::kF32, {count});
  };
  ASSERT_TRUE(SquaredReluForward({}, {view(x), view(y), true}).ok());
  EXPECT_EQ(y, (std::array<float, 8>{9, 0, 9, 0, 0, 0, 25, 0}));
  ASSERT_TRUE(SquaredReluBackward({}, {view(dy), view(x), view(dx), {}, true}).ok());
  EXPECT_EQ(dx, (std::array<float, 8>{6, 0, 6, 0, 0, 0, 20, 0}));
  ASSERT_TRUE(SquaredReluForward({}, {view(x), view(y), false}).ok());
  EXPECT_EQ(y, (std::array<float, 8>{9, 1, 9, 9, 0, 0, 25, 0}));
  EXPECT_EQ(SquaredReluForward({}, {view(x, 6), view(y, 6), true}).ToString(),
            "INVALID: SquaredReluForward: two_of_four needs a multiple of 4 elements");
}

}  // namespace
}  // namespace weft::kernels
