#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/rng.h"

namespace weft {

/// How many layers a step runs where a network of `blocks` is trained for depths up to `layers`, by
/// low-value-prioritised sampling (Pan et al. 2024, arXiv 2401.09192): of x uniform in (0, 1)
/// floor(blocks y), y on the hyperbola m / (x + n) through (1e-6, layers / blocks + 0.4) and (1,
/// 0.6), cut to [1, layers / blocks]. Half of the draws and more are of few layers.
inline int64_t SampledLayers(int64_t blocks, int64_t layers, double x) {
  constexpr double kFirst = 1e-6, kEnd = 0.6;
  const double most = static_cast<double>(layers) / static_cast<double>(blocks);
  const double start = most + 0.4;
  const double n = (start * kFirst - kEnd) / (kEnd - start);
  const double y = kEnd * (n + 1) / (std::clamp(x, kFirst, 1.0) + n);
  return static_cast<int64_t>(std::clamp(y, 1.0, most) * static_cast<double>(blocks));
}

/// The number of layers of a step: the same on all ranks, and in a run that was stopped.
inline int64_t LayersOfStep(int64_t blocks, int64_t layers, int64_t seed, int64_t step) {
  constexpr uint32_t kSite = SiteHash("layer_sampling");
  const PhiloxKey key{static_cast<uint64_t>(seed), static_cast<uint32_t>(step), kSite};
  return SampledLayers(blocks, layers, UniformFloat(Philox(key, 0).v[0]));
}

}  // namespace weft
