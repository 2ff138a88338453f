#pragma once

#include <vector>

namespace weft::kernels::ref {

/// Element of `values`, which holds one for each column or one for all; `otherwise` without values.
inline double OfColumn(const std::vector<double>& values, size_t column, double otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values[column];
}

/// Float64 y = x * scale + shift; empty scale and shift are 1 and 0.
inline std::vector<double> Affine(const std::vector<double>& x, const std::vector<double>& scale,
                                  const std::vector<double>& shift, size_t width) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] * OfColumn(scale, i % width, 1) + OfColumn(shift, i % width, 0);
  }
  return y;
}

/// Sums of a * b by column, or in all when `size` is 1.
inline std::vector<double> ColumnSums(const std::vector<double>& a, const std::vector<double>& b,
                                      size_t width, size_t size) {
  std::vector<double> sums(size, 0.0);
  for (size_t i = 0; i < a.size(); ++i) sums[size == 1 ? 0 : i % width] += a[i] * b[i];
  return sums;
}

}  // namespace weft::kernels::ref
