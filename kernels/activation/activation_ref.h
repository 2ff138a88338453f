#pragma once

#include <cmath>

#include "kernels/activation/activation.h"

namespace weft::kernels::ref {

inline constexpr double kSqrtTwoOverPi = 0.79788456080286535588;

/// Float64 GELU, tanh form.
inline double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x)));
}

/// Its derivative.
inline double GeluDerivative(double x) {
  double tanh = std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) +
         0.5 * x * (1 - tanh * tanh) * kSqrtTwoOverPi * (1 + 3 * 0.044715 * x * x);
}

/// Float64 GELU, exact form.
inline double ErfGelu(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

/// Its derivative.
inline double ErfGeluDerivative(double x) {
  constexpr double kSqrtTwoPi = 2.50662827463100050242;
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / kSqrtTwoPi;
}

/// Those of a form.
struct GeluFunctions {
  double (*value)(double x);
  double (*derivative)(double x);
};
inline GeluFunctions GeluOf(GeluForm form) {
  if (form == GeluForm::kErf) return {ErfGelu, ErfGeluDerivative};
  return {Gelu, GeluDerivative};
}

}  // namespace weft::kernels::ref
