#include "worker/engine/techniques/preference_optimization/dpo.h"

#include <cmath>

#include "common/check.h"

namespace weft::engine {
namespace {

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// -log sigmoid(x), also where exp(-x) is too large.
double MinusLogSigmoid(double x) {
  return std::log1p(std::exp(-std::abs(x))) + std::fmax(-x, 0.0);
}

}  // namespace

DpoResult DpoLosses(const PreferenceSpec& spec, std::span<const double> log_probabilities,
                    std::span<const double> reference) {
  WEFT_CHECK(log_probabilities.size() % 2 == 0 && reference.size() == log_probabilities.size(),
             "two answers a pair");
  DpoResult result;
  const auto pairs = static_cast<double>(log_probabilities.size()) / 2;
  for (size_t s = 0; s < log_probabilities.size(); s += 2) {
    const double chosen = spec.beta * (log_probabilities[s] - reference[s]);
    const double rejected = spec.beta * (log_probabilities[s + 1] - reference[s + 1]);
    const double z = chosen - rejected;
    const double loss = (1 - spec.label_smoothing) * MinusLogSigmoid(z) +
                        spec.label_smoothing * MinusLogSigmoid(-z);
    const double slope =
        spec.label_smoothing * Sigmoid(z) - (1 - spec.label_smoothing) * Sigmoid(-z);
    result.losses.losses.insert(result.losses.losses.end(), {loss, loss});
    // The loss is summed over sequences, where the pair counts twice.
    const double derivative = 2 * spec.beta * slope;
    result.losses.derivatives.insert(result.losses.derivatives.end(), {derivative, -derivative});
    result.chosen_reward += chosen;
    result.rejected_reward += rejected;
    result.accuracy += z > 0 ? 1 : 0;
  }
  for (double* mean : {&result.chosen_reward, &result.rejected_reward, &result.accuracy}) {
    *mean /= pairs;
  }
  return result;
}

}  // namespace weft::engine
