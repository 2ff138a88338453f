#pragma once

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {

// Matrices in float64, row after row.
using Doubles = std::vector<double>;

template <class T>
Doubles AsDoubles(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

inline Doubles AsDoubles(const TensorView& view) {
  return AsDoubles(ValuesOf(view));
}

/// |a - b| / |b| as vectors.
inline double Difference(const Doubles& a, const Doubles& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

inline std::vector<float> Normal(size_t count, uint64_t seed, double deviation = 1) {
  PhiloxStream random(PhiloxKey{seed, 0, 0});
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(deviation * random.Normal());
  return values;
}

/// c [m, n] = a [m, k] b [k, n].
inline Doubles Times(const Doubles& a, const Doubles& b, int64_t m, int64_t k, int64_t n) {
  Doubles c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t l = 0; l < n; ++l) c[i * n + l] += a[i * k + j] * b[j * n + l];
    }
  }
  return c;
}

inline Doubles Transposed(const Doubles& a, int64_t rows, int64_t columns) {
  Doubles b(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) b[j * rows + i] = a[i * columns + j];
  }
  return b;
}

inline Doubles Scaled(Doubles values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

}  // namespace weft::engine
