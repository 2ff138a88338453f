#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

struct LayerNormOutput {
  std::vector<double> residual;  ///< [rows, width], residual + delta
  std::vector<double> y;         ///< [rows, width]
  std::vector<double> mean;      ///< [rows]
  std::vector<double> rstd;      ///< [rows]
};

/// Float64 LayerNorm of residual + delta; an empty delta counts as zero.
inline LayerNormOutput LayerNorm(const std::vector<double>& residual,
                                 const std::vector<double>& delta,
                                 const std::vector<double>& weight, const std::vector<double>& bias,
                                 double epsilon) {
  size_t width = weight.size(), rows = residual.size() / width;
  LayerNormOutput result{residual, residual, std::vector<double>(rows), std::vector<double>(rows)};
  for (size_t i = 0; i < delta.size(); ++i) result.residual[i] += delta[i];
  for (size_t r = 0; r < rows; ++r) {
    const double* x = &result.residual[r * width];
    double mean = 0, variance = 0;
    for (size_t c = 0; c < width; ++c) mean += x[c] / width;
    for (size_t c = 0; c < width; ++c) variance += (x[c] - mean) * (x[c] - mean) / width;
    double rstd = 1 / std::sqrt(variance + epsilon);
    for (size_t c = 0; c < width; ++c) {
      result.y[r * width + c] = (x[c] - mean) * rstd * weight[c] + bias[c];
    }
    result.mean[r] = mean;
    result.rstd[r] = rstd;
  }
  return result;
}

struct LayerNormGradient {
  std::vector<double> dx;       ///< [rows, width]
  std::vector<double> dweight;  ///< [width]
  std::vector<double> dbias;    ///< [width]
};

/// Gradients of sum(y * dy), with mean and 1/sqrt(variance + epsilon) found again from x.
inline LayerNormGradient LayerNormBackward(const std::vector<double>& dy,
                                           const std::vector<double>& x,
                                           const std::vector<double>& weight, double epsilon) {
  size_t width = weight.size(), rows = x.size() / width;
  LayerNormGradient g{std::vector<double>(x.size()), std::vector<double>(width),
                      std::vector<double>(width)};
  LayerNormOutput forward = LayerNorm(x, {}, weight, std::vector<double>(width), epsilon);
  for (size_t r = 0; r < rows; ++r) {
    double mean_g = 0, mean_gx = 0;
    for (size_t c = 0; c < width; ++c) {
      double normed = (x[r * width + c] - forward.mean[r]) * forward.rstd[r];
      g.dweight[c] += dy[r * width + c] * normed;
      g.dbias[c] += dy[r * width + c];
      mean_g += dy[r * width + c] * weight[c] / width;
      mean_gx += dy[r * width + c] * weight[c] * normed / width;
    }
    for (size_t c = 0; c < width; ++c) {
      double normed = (x[r * width + c] - forward.mean[r]) * forward.rstd[r];
      g.dx[r * width + c] =
          (dy[r * width + c] * weight[c] - mean_g - normed * mean_gx) * forward.rstd[r];
    }
  }
  return g;
}

}  // namespace weft::kernels::ref
