#pragma once

#include <cstdint>

#include "common/spec/model_spec.h"

namespace weft {

/// The probability that training skips a residual branch of `layer` of `layers`, from 0.
inline double SkipProbability(const StochasticDepthSpec& spec, int64_t layer, int64_t layers) {
  if (spec.decay == "uniform") return spec.rate;
  return spec.rate * static_cast<double>(layer + 1) / static_cast<double>(layers);
}

}  // namespace weft
