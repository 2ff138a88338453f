#pragma once

#include <cmath>

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

}  // namespace weft::kernels::ref
