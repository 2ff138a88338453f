#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels {

struct AdamWRefState {
  std::vector<double> parameter, first_moment, second_moment;
};

/// Algorithm 2 of Loshchilov and Hutter 2019 (the AdamW half), with weight decay scaled by the
/// learning rate as PyTorch does.
inline AdamWRefState AdamWRef(AdamWRefState s, const std::vector<double>& gradient, double scale,
                              double learning_rate, double beta1, double beta2, double epsilon,
                              double weight_decay, int64_t step) {
  auto t = static_cast<double>(step);
  for (size_t i = 0; i < gradient.size(); ++i) {
    double g = scale * gradient[i];
    s.parameter[i] -= learning_rate * weight_decay * s.parameter[i];
    s.first_moment[i] = beta1 * s.first_moment[i] + (1 - beta1) * g;
    s.second_moment[i] = beta2 * s.second_moment[i] + (1 - beta2) * g * g;
    double mean = s.first_moment[i] / (1 - std::pow(beta1, t));
    double variance = s.second_moment[i] / (1 - std::pow(beta2, t));
    s.parameter[i] -= learning_rate * mean / (std::sqrt(variance) + epsilon);
  }
  return s;
}

}  // namespace weft::kernels
