#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::kernels {

/// y[m, o] = sum_i x[m, i] w[o, i] + bias[o]; bias may be empty.
inline std::vector<double> LinearForwardRef(std::span<const double> x, std::span<const double> w,
                                            std::span<const double> bias, int64_t rows, int64_t in,
                                            int64_t out) {
  std::vector<double> y(rows * out);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (int64_t i = 0; i < in; ++i) sum += x[m * in + i] * w[o * in + i];
      y[m * out + o] = sum;
    }
  }
  return y;
}

/// dx[m, i] = before[m, i] + sum_o dy[m, o] w[o, i]; `before` may be empty.
inline std::vector<double> LinearBackwardInputRef(std::span<const double> dy,
                                                  std::span<const double> w,
                                                  std::span<const double> before, int64_t rows,
                                                  int64_t in, int64_t out) {
  std::vector<double> dx(rows * in);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < in; ++i) {
      double sum = before.empty() ? 0 : before[m * in + i];
      for (int64_t o = 0; o < out; ++o) sum += dy[m * out + o] * w[o * in + i];
      dx[m * in + i] = sum;
    }
  }
  return dx;
}

/// dw[o, i] = before[o, i] + sum_m dy[m, o] x[m, i]; `before` may be empty.
inline std::vector<double> LinearBackwardWeightRef(std::span<const double> x,
                                                   std::span<const double> dy,
                                                   std::span<const double> before, int64_t rows,
                                                   int64_t in, int64_t out) {
  std::vector<double> dw(out * in);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      double sum = before.empty() ? 0 : before[o * in + i];
      for (int64_t m = 0; m < rows; ++m) sum += dy[m * out + o] * x[m * in + i];
      dw[o * in + i] = sum;
    }
  }
  return dw;
}

/// db[o] = before[o] + sum_m dy[m, o]; `before` may be empty.
inline std::vector<double> BiasGradientRef(std::span<const double> dy,
                                           std::span<const double> before, int64_t rows,
                                           int64_t out) {
  std::vector<double> db(out);
  for (int64_t o = 0; o < out; ++o) {
    db[o] = before.empty() ? 0 : before[o];
    for (int64_t m = 0; m < rows; ++m) db[o] += dy[m * out + o];
  }
  return db;
}

}  // namespace weft::kernels
