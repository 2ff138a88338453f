#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels {

/// A parameter tensor and what its rule keeps, in the order of the contract.
struct UpdateRefState {
  std::vector<double> parameter;
  std::array<std::vector<double>, 3> state;
};

/// What all rules receive; `gradient` is already scaled and limited.
struct UpdateRefInputs {
  std::vector<double> gradient;
  double learning_rate = 0;
  double weight_decay = 0;
  bool layer_rate = true;
};

inline double RefNorm(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum);
}

/// torch.optim.SGD with dampening 0.
inline UpdateRefState SgdRef(UpdateRefState s, const UpdateRefInputs& in, double momentum,
                             bool nesterov) {
  for (size_t i = 0; i < in.gradient.size(); ++i) {
    const double g = in.gradient[i] + in.weight_decay * s.parameter[i];
    double direction = g;
    if (momentum != 0) {
      s.state[0][i] = momentum * s.state[0][i] + g;
      direction = nesterov ? g + momentum * s.state[0][i] : s.state[0][i];
    }
    s.parameter[i] -= in.learning_rate * direction;
  }
  return s;
}

/// Algorithm 1 of You et al. 2017 with an epsilon in the denominator.
inline UpdateRefState LarsRef(UpdateRefState s, const UpdateRefInputs& in, double momentum,
                              double trust, double epsilon) {
  const double p = RefNorm(s.parameter), g = RefNorm(in.gradient);
  double local = 1;
  if (in.layer_rate && p > 0 && g > 0) local = trust * p / (g + in.weight_decay * p + epsilon);
  for (size_t i = 0; i < in.gradient.size(); ++i) {
    s.state[0][i] = momentum * s.state[0][i] +
                    in.learning_rate * local * (in.gradient[i] + in.weight_decay * s.parameter[i]);
    s.parameter[i] -= s.state[0][i];
  }
  return s;
}

/// Moments of Adam in states 0 and 1, and the bias-corrected direction.
inline std::vector<double> AdamRefDirection(UpdateRefState& s, const std::vector<double>& gradient,
                                            double beta1, double beta2, double epsilon,
                                            int64_t step, bool keeps_second = false) {
  const auto t = static_cast<double>(step);
  std::vector<double> direction;
  for (size_t i = 0; i < gradient.size(); ++i) {
    double& m = s.state[0][i];
    double& v = s.state[1][i];
    m = beta1 * m + (1 - beta1) * gradient[i];
    if (!keeps_second) v = beta2 * v + (1 - beta2) * gradient[i] * gradient[i];
    direction.push_back(m / (1 - std::pow(beta1, t)) /
                        (std::sqrt(v / (1 - std::pow(beta2, t))) + epsilon));
  }
  return direction;
}

/// Algorithm 2 of Loshchilov and Hutter 2019, both halves, with decoupled decay scaled by the
/// learning rate as PyTorch does.
inline UpdateRefState AdamRef(UpdateRefState s, const UpdateRefInputs& in, double beta1,
                              double beta2, double epsilon, int64_t step, bool decoupled,
                              bool keeps_second) {
  std::vector<double> gradient = in.gradient;
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (!decoupled) gradient[i] += in.weight_decay * s.parameter[i];
  }
  const std::vector<double> direction =
      AdamRefDirection(s, gradient, beta1, beta2, epsilon, step, keeps_second);
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (decoupled) s.parameter[i] -= in.learning_rate * in.weight_decay * s.parameter[i];
    s.parameter[i] -= in.learning_rate * direction[i];
  }
  return s;
}

/// Algorithm 2 of You et al. 2020.
inline UpdateRefState LambRef(UpdateRefState s, const UpdateRefInputs& in, double beta1,
                              double beta2, double epsilon, int64_t step) {
  std::vector<double> r = AdamRefDirection(s, in.gradient, beta1, beta2, epsilon, step);
  for (size_t i = 0; i < r.size(); ++i) r[i] += in.weight_decay * s.parameter[i];
  const double p = RefNorm(s.parameter), d = RefNorm(r);
  const double ratio = in.layer_rate && p > 0 && d > 0 ? p / d : 1;
  for (size_t i = 0; i < r.size(); ++i) s.parameter[i] -= in.learning_rate * ratio * r[i];
  return s;
}

/// Algorithm 2 of Chen et al. 2023.
inline UpdateRefState LionRef(UpdateRefState s, const UpdateRefInputs& in, double beta1,
                              double beta2) {
  for (size_t i = 0; i < in.gradient.size(); ++i) {
    const double g = in.gradient[i];
    double& m = s.state[0][i];
    const double c = beta1 * m + (1 - beta1) * g;
    const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    s.parameter[i] -= in.learning_rate * (sign + in.weight_decay * s.parameter[i]);
    m = beta2 * m + (1 - beta2) * g;
  }
  return s;
}

/// Muon's direction, into state 1.
inline UpdateRefState MomentumRef(UpdateRefState s, const UpdateRefInputs& in, double momentum,
                                  bool nesterov) {
  for (size_t i = 0; i < in.gradient.size(); ++i) {
    const double g = in.gradient[i];
    double& m = s.state[0][i];
    m = momentum * m + (1 - momentum) * g;
    s.state[1][i] = nesterov ? (1 - momentum) * g + momentum * m : m;
  }
  return s;
}

/// Algorithm 1 of Defazio et al. 2024; the parameter is y, the states are x, z and v.
inline UpdateRefState ScheduleFreeRef(UpdateRefState s, const UpdateRefInputs& in, double beta1,
                                      double beta2, double epsilon, int64_t step,
                                      double average_weight) {
  const double rate = in.learning_rate * std::sqrt(1 - std::pow(beta2, static_cast<double>(step)));
  for (size_t i = 0; i < in.gradient.size(); ++i) {
    const double g = in.gradient[i];
    double& x = s.state[0][i];
    double& z = s.state[1][i];
    double& v = s.state[2][i];
    v = beta2 * v + (1 - beta2) * g * g;
    z -= rate * g / (std::sqrt(v) + epsilon) + rate * in.weight_decay * s.parameter[i];
    x = (1 - average_weight) * x + average_weight * z;
    s.parameter[i] = (1 - beta1) * z + beta1 * x;
  }
  return s;
}

}  // namespace weft::kernels
