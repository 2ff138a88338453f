#pragma once

#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

/// y [tokens, width] of x [n, width], places and weights [tokens, k], in float64.
inline std::vector<double> Combine(const std::vector<double>& x, const std::vector<double>& places,
                                   const std::vector<double>& weights, int64_t k, int64_t width) {
  std::vector<double> y(places.size() / static_cast<size_t>(k) * static_cast<size_t>(width), 0);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    const auto from = static_cast<size_t>(places[i]) * static_cast<size_t>(width);
    const size_t to = i / static_cast<size_t>(k) * static_cast<size_t>(width);
    for (int64_t c = 0; c < width; ++c) y[to + c] += weights[i] * x[from + c];
  }
  return y;
}

/// Gradients of its x and weights.
struct CombineGradients {
  std::vector<double> dx;
  std::vector<double> dweights;
};
inline CombineGradients CombineBackward(const std::vector<double>& dy, const std::vector<double>& x,
                                        const std::vector<double>& places,
                                        const std::vector<double>& weights, int64_t k,
                                        int64_t width) {
  CombineGradients gradients{std::vector<double>(x.size(), 0),
                             std::vector<double>(places.size(), 0)};
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    const auto row = static_cast<size_t>(places[i]) * static_cast<size_t>(width);
    const size_t token = i / static_cast<size_t>(k) * static_cast<size_t>(width);
    for (int64_t c = 0; c < width; ++c) {
      gradients.dx[row + c] += weights[i] * dy[token + c];
      gradients.dweights[i] += dy[token + c] * x[row + c];
    }
  }
  return gradients;
}

}  // namespace weft::kernels::ref
