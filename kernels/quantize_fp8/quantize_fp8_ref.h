#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/dtype.h"

namespace weft::kernels::ref {

/// The number nearest to `value` of those with this many bits of fraction and exponent, the largest
/// for larger ones. Of two that are as near, the one whose fraction is even.
inline double NearestFloat8(double value, DType type) {
  const bool e4m3 = type == DType::kF8E4M3;
  const int fraction_bits = e4m3 ? 3 : 2, smallest_exponent = e4m3 ? -6 : -14;
  const double largest = e4m3 ? 448 : 57344, magnitude = std::abs(value);
  if (magnitude == 0) return value;
  const int exponent =
      std::max(static_cast<int>(std::floor(std::log2(magnitude))), smallest_exponent);
  const double step = std::exp2(exponent - fraction_bits);
  const double steps = magnitude / step, low = std::floor(steps);
  const double odd = std::fmod(low, 2);
  const double nearest = steps - low > 0.5 || (steps - low == 0.5 && odd == 1) ? low + 1 : low;
  return std::copysign(std::min(nearest * step, largest), value);
}

/// Row-major FP8 values of x scale, the product in f32.
inline std::vector<double> QuantizeFp8(const std::vector<double>& x, float scale, DType type) {
  std::vector<double> q;
  for (double value : x) q.push_back(NearestFloat8(static_cast<float>(value) * scale, type));
  return q;
}

/// [columns, width] of x [rows, columns], zeros from column `rows` on.
inline std::vector<double> TransposedWithZeros(const std::vector<double>& x, int64_t rows,
                                               int64_t columns, int64_t width) {
  std::vector<double> t(static_cast<size_t>(columns * width));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) t[c * width + r] = x[r * columns + c];
  }
  return t;
}

}  // namespace weft::kernels::ref
