#pragma once

#include <cmath>
#include <cstdint>

#include "common/spec/model_spec.h"

namespace weft {

/// The share of StochasticDepthSpec::rate at `step` of `steps`: 1, or what progressive layer
/// dropping has come to (Zhang and He 2020, arXiv 2010.13369).
inline double ShareOfRate(const StochasticDepthSpec& spec, int64_t step, int64_t steps) {
  if (spec.gamma == 0) return 1;
  return 1 - std::exp(-spec.gamma * static_cast<double>(step) / static_cast<double>(steps));
}

/// Its mean over all steps.
inline double MeanShareOfRate(const StochasticDepthSpec& spec) {
  return spec.gamma == 0 ? 1 : 1 + std::expm1(-spec.gamma) / spec.gamma;
}

/// The probability that training skips a residual branch of `layer` of `layers`, from 0, where the
/// rate is spec.rate times `share`.
inline double SkipProbability(const StochasticDepthSpec& spec, int64_t layer, int64_t layers,
                              double share) {
  const double rate = spec.rate * share;
  if (spec.decay == "uniform") return rate;
  return rate * static_cast<double>(layer + 1) / static_cast<double>(layers);
}

}  // namespace weft
