#pragma once

#include <cmath>

namespace weft::kernels::ref {

/// Float64 x / (1 + e^-x).
inline double Silu(double x) {
  return x / (1 + std::exp(-x));
}

/// Its derivative.
inline double SiluDerivative(double x) {
  double sigmoid = 1 / (1 + std::exp(-x));
  return sigmoid + x * sigmoid * (1 - sigmoid);
}

}  // namespace weft::kernels::ref
