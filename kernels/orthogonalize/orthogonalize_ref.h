#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels {

/// a b of row-major [m, k] and [k, n].
inline std::vector<double> RefProduct(const std::vector<double>& a, const std::vector<double>& b,
                                      int64_t m, int64_t k, int64_t n) {
  std::vector<double> c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

inline std::vector<double> RefTranspose(const std::vector<double>& a, int64_t rows,
                                        int64_t columns) {
  std::vector<double> t(a.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) t[c * rows + r] = a[r * columns + c];
  }
  return t;
}

/// The iteration as its authors write it, from the left: X = a X + (b A + c A A) X, A = X Xᵀ.
inline std::vector<double> OrthogonalizeRef(std::vector<double> x, int64_t rows, int64_t columns,
                                            int64_t iterations) {
  double norm = 0;
  for (double value : x) norm += value * value;
  for (double& value : x) value /= std::sqrt(norm) + 1e-7;
  for (int64_t i = 0; i < iterations; ++i) {
    const std::vector<double> a =
        RefProduct(x, RefTranspose(x, rows, columns), rows, columns, rows);
    std::vector<double> b = RefProduct(a, a, rows, rows, rows);
    for (size_t k = 0; k < b.size(); ++k) b[k] = -4.7750 * a[k] + 2.0315 * b[k];
    const std::vector<double> bx = RefProduct(b, x, rows, rows, columns);
    for (size_t k = 0; k < x.size(); ++k) x[k] = 3.4445 * x[k] + bx[k];
  }
  return x;
}

}  // namespace weft::kernels
