#pragma once

#include <vector>

#include "common/rng.h"

namespace weft::kernels::ref {

/// Float64 dropout, one element after the other.
inline std::vector<double> Dropout(const std::vector<double>& x, float probability, PhiloxKey key,
                                   uint64_t first_element, size_t columns = 0,
                                   size_t row_stride = 0) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t place = columns == 0 ? i : i / columns * row_stride + i % columns;
    uint64_t element = first_element + place;
    bool kept = UniformFloat(Philox(key, element / 4).v[element % 4]) >= probability;
    y[i] = kept ? x[i] / (1.0 - static_cast<double>(probability)) : 0.0;
  }
  return y;
}

}  // namespace weft::kernels::ref
