#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

struct RmsNormOutput {
  std::vector<double> y;     ///< [rows, width]
  std::vector<double> rrms;  ///< [rows]
};

/// Float64 RMS norm.
inline RmsNormOutput RmsNorm(const std::vector<double>& x, const std::vector<double>& weight,
                             double epsilon) {
  size_t width = weight.size(), rows = x.size() / width;
  RmsNormOutput result{x, std::vector<double>(rows)};
  for (size_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (size_t c = 0; c < width; ++c) mean += x[r * width + c] * x[r * width + c] / width;
    result.rrms[r] = 1 / std::sqrt(mean + epsilon);
    for (size_t c = 0; c < width; ++c) {
      result.y[r * width + c] = x[r * width + c] * result.rrms[r] * weight[c];
    }
  }
  return result;
}

struct RmsNormGradient {
  std::vector<double> dx;       ///< [rows, width]
  std::vector<double> dweight;  ///< [width]
};

/// Gradients of sum(y * dy).
inline RmsNormGradient RmsNormBackward(const std::vector<double>& dy, const std::vector<double>& x,
                                       const std::vector<double>& weight, double epsilon) {
  size_t width = weight.size(), rows = x.size() / width;
  RmsNormGradient g{std::vector<double>(x.size()), std::vector<double>(width)};
  RmsNormOutput forward = RmsNorm(x, weight, epsilon);
  for (size_t r = 0; r < rows; ++r) {
    double rrms = forward.rrms[r], mean_gx = 0;
    for (size_t c = 0; c < width; ++c) {
      size_t i = r * width + c;
      g.dweight[c] += dy[i] * x[i] * rrms;
      mean_gx += dy[i] * weight[c] * x[i] * rrms / width;
    }
    for (size_t c = 0; c < width; ++c) {
      size_t i = r * width + c;
      g.dx[i] = rrms * (dy[i] * weight[c] - x[i] * rrms * mean_gx);
    }
  }
  return g;
}

}  // namespace weft::kernels::ref
