#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::kernels {

/// The sum of the squares of the first `vocabulary` logits of each row; 0 where the target is
/// negative.
inline std::vector<double> LogitSquaresRef(std::span<const double> logits,
                                           std::span<const double> targets, int64_t columns,
                                           int64_t vocabulary) {
  std::vector<double> squares(targets.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    for (const double logit : logits.subspan(r * columns, vocabulary)) squares[r] += logit * logit;
  }
  return squares;
}

/// d(factor * sum of LogitSquaresRef) / d logits.
inline std::vector<double> LogitSquaresGradientRef(std::span<const double> logits,
                                                   std::span<const double> targets, int64_t columns,
                                                   int64_t vocabulary, double factor) {
  std::vector<double> gradient(logits.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    for (int64_t c = 0; c < vocabulary; ++c) {
      gradient[r * columns + c] = 2 * factor * logits[r * columns + c];
    }
  }
  return gradient;
}

}  // namespace weft::kernels
