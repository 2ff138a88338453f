#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

/// Quantised values (as bytes, 0 to 255) and scales of a matrix, with the f32 roundings of the
/// contract.
struct Int8Codes {
  std::vector<double> q;
  std::vector<double> scale;
};

inline Int8Codes QuantizeInt8(const std::vector<double>& x, int64_t rows, int64_t columns,
                              int64_t group) {
  Int8Codes result;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < columns; begin += group) {
      const int64_t end = std::min(begin + group, columns);
      double largest = 0;
      for (int64_t c = begin; c < end; ++c) {
        largest = std::max(largest, std::abs(x[row * columns + c]));
      }
      result.scale.push_back(static_cast<float>(largest / 127));
      for (int64_t c = begin; c < end; ++c) {
        const double factor = static_cast<float>(127 / largest);
        const double code = std::nearbyint(static_cast<float>(x[row * columns + c] * factor));
        result.q.push_back(code < 0 ? code + 256 : code);
      }
    }
  }
  return result;
}

}  // namespace weft::kernels::ref
