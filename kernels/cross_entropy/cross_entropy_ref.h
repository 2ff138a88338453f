#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::kernels {

/// softmax(row) over its first `vocabulary` elements.
inline std::vector<double> SoftmaxRef(std::span<const double> row, int64_t vocabulary) {
  double max = *std::max_element(row.begin(), row.begin() + vocabulary), sum = 0;
  std::vector<double> p(vocabulary);
  for (int64_t c = 0; c < vocabulary; ++c) sum += p[c] = std::exp(row[c] - max);
  for (double& value : p) value /= sum;
  return p;
}

/// losses[r] = -log softmax(logits[r])[targets[r]]; 0 where the target is negative.
inline std::vector<double> CrossEntropyLossRef(std::span<const double> logits,
                                               std::span<const double> targets, int64_t columns,
                                               int64_t vocabulary) {
  std::vector<double> losses(targets.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    auto p = SoftmaxRef(logits.subspan(r * columns, columns), vocabulary);
    losses[r] = -std::log(p[static_cast<size_t>(targets[r])]);
  }
  return losses;
}

/// d(scale * sum of losses) / d logits, row r times weights[r] where there are weights.
inline std::vector<double> CrossEntropyGradientRef(std::span<const double> logits,
                                                   std::span<const double> targets, int64_t columns,
                                                   int64_t vocabulary, double scale,
                                                   std::span<const double> weights = {}) {
  std::vector<double> gradient(logits.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    auto p = SoftmaxRef(logits.subspan(r * columns, columns), vocabulary);
    p[static_cast<size_t>(targets[r])] -= 1;
    const double of_row = weights.empty() ? scale : scale * weights[r];
    for (int64_t c = 0; c < vocabulary; ++c) gradient[r * columns + c] = of_row * p[c];
  }
  return gradient;
}

}  // namespace weft::kernels
