#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

struct MaskedNormOutput {
  std::vector<double> y;      ///< [rows, width]
  std::vector<double> mean;   ///< [rows], zero for RMS
  std::vector<double> scale;  ///< [rows]
};

/// Float64 masked norm; an empty bias makes it an RMS norm.
inline MaskedNormOutput MaskedNorm(const std::vector<double>& x, const std::vector<double>& weight,
                                   const std::vector<double>& bias, const std::vector<double>& mask,
                                   double epsilon) {
  const size_t width = weight.size(), rows = x.size() / width;
  MaskedNormOutput result{x, std::vector<double>(rows), std::vector<double>(rows)};
  double columns = 0;
  for (const double c : mask) columns += c;
  for (size_t r = 0; r < rows; ++r) {
    const double* row = &x[r * width];
    double mean = 0, variance = 0;
    for (size_t c = 0; c < width && !bias.empty(); ++c) mean += mask[c] * row[c] / columns;
    for (size_t c = 0; c < width; ++c) {
      variance += mask[c] * (row[c] - mean) * (row[c] - mean) / columns;
    }
    const double scale = 1 / std::sqrt(variance + epsilon);
    for (size_t c = 0; c < width; ++c) {
      const double normed = (row[c] - mean) * scale;
      result.y[r * width + c] = mask[c] * (normed * weight[c] + (bias.empty() ? 0 : bias[c]));
    }
    result.mean[r] = mean;
    result.scale[r] = scale;
  }
  return result;
}

struct MaskedNormGradient {
  std::vector<double> dx;       ///< [rows, width]
  std::vector<double> dweight;  ///< [width]
  std::vector<double> dbias;    ///< [width]
};

/// Gradients of sum(y * dy), with the statistics found again from x.
inline MaskedNormGradient MaskedNormBackward(const std::vector<double>& dy,
                                             const std::vector<double>& x,
                                             const std::vector<double>& weight, bool layer,
                                             const std::vector<double>& mask, double epsilon) {
  const size_t width = weight.size(), rows = x.size() / width;
  MaskedNormGradient g{std::vector<double>(x.size()), std::vector<double>(width),
                       std::vector<double>(width)};
  const MaskedNormOutput forward =
      MaskedNorm(x, weight, std::vector<double>(layer ? width : 0), mask, epsilon);
  double columns = 0;
  for (const double c : mask) columns += c;
  for (size_t r = 0; r < rows; ++r) {
    const auto normed = [&](size_t c) {
      return (x[r * width + c] - forward.mean[r]) * forward.scale[r];
    };
    double mean_g = 0, mean_gx = 0;
    for (size_t c = 0; c < width; ++c) {
      const double d = mask[c] * dy[r * width + c];
      g.dweight[c] += d * normed(c);
      g.dbias[c] += d;
      if (layer) mean_g += d * weight[c] / columns;
      mean_gx += d * weight[c] * normed(c) / columns;
    }
    for (size_t c = 0; c < width; ++c) {
      g.dx[r * width + c] = forward.scale[r] * mask[c] *
                            (dy[r * width + c] * weight[c] - mean_g - normed(c) * mean_gx);
    }
  }
  return g;
}

}  // namespace weft::kernels::ref
