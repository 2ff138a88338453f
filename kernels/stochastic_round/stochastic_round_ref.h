#pragma once

#include <cmath>
#include <vector>

#include "common/rng.h"

namespace weft::kernels::ref {

/// Float64 stochastic rounding of finite numbers in the range of bf16: each lies between two
/// neighbours with 8 significant bits, and goes to the one away from zero when its distance from
/// the other, in 2^-16 of theirs, and the element's random number reach 1 together.
inline std::vector<double> StochasticRound(const std::vector<double>& x, PhiloxKey key,
                                           uint64_t first_element) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0) continue;
    const double magnitude = std::abs(x[i]);
    const double step = std::exp2(std::max(std::floor(std::log2(magnitude)), -126.0) - 7);
    const double low = std::floor(magnitude / step) * step;
    const uint64_t element = first_element + i;
    const double random = Philox(key, element / 4).v[element % 4] >> 16;
    const bool up = std::floor((magnitude - low) / step * 65536) + random >= 65536;
    y[i] = std::copysign(up ? low + step : low, x[i]);
  }
  return y;
}

}  // namespace weft::kernels::ref
