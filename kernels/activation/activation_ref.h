#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

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

/// Float64 ReLU.
inline double Relu(double x) {
  return x > 0 ? x : 0;
}

/// Its derivative.
inline double ReluDerivative(double x) {
  return x > 0 ? 1 : 0;
}

/// Float64 x / (1 + e^-x).
inline double Silu(double x) {
  return x / (1 + std::exp(-x));
}

/// Its derivative.
inline double SiluDerivative(double x) {
  const double sigmoid = 1 / (1 + std::exp(-x));
  return sigmoid + x * sigmoid * (1 - sigmoid);
}

/// Float64 squared ReLU and its derivative; with two_of_four those of the two largest of each four,
/// of equals the first.
struct SquaredReluValues {
  std::vector<double> values, derivatives;
};
inline SquaredReluValues SquaredRelu(const std::vector<double>& x, bool two_of_four) {
  SquaredReluValues made;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i / 4 * 4;
    int larger = 0;
    for (size_t j = first; two_of_four && j < first + 4; ++j) {
      if (x[j] > x[i] || (x[j] == x[i] && j < i)) ++larger;
    }
    const double relu = larger < 2 ? std::fmax(x[i], 0) : 0;
    made.values.push_back(relu * relu);
    made.derivatives.push_back(2 * relu);
  }
  return made;
}

/// An activation and its derivative.
struct UnitFunctions {
  double (*value)(double x);
  double (*derivative)(double x);
};
inline UnitFunctions GeluOf(GeluForm form) {
  if (form == GeluForm::kErf) return {ErfGelu, ErfGeluDerivative};
  return {Gelu, GeluDerivative};
}
inline UnitFunctions UnitOf(UnitFunction function) {
  if (function == UnitFunction::kSilu) return {Silu, SiluDerivative};
  return {Relu, ReluDerivative};
}

}  // namespace weft::kernels::ref
