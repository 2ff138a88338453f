#pragma once

#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

/// Float64 rotation of one token's heads by the angles whose cosines and sines are given, [pairs]
/// each; the other way round with `inverse`.
inline std::vector<double> Rope(std::vector<double> x, const std::vector<double>& cosines,
                                const std::vector<double>& sines, bool inverse) {
  const size_t half = cosines.size();
  for (size_t head = 0; head < x.size(); head += 2 * half) {
    for (size_t j = 0; j < half; ++j) {
      const double a = x[head + j], b = x[head + half + j];
      const double sine = inverse ? -sines[j] : sines[j];
      x[head + j] = a * cosines[j] - b * sine;
      x[head + half + j] = b * cosines[j] + a * sine;
    }
  }
  return x;
}

}  // namespace weft::kernels::ref
