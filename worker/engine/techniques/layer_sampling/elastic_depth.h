#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/rng.h"

namespace weft::engine {

/// Networks of several depths that share their blocks (the elastic supernet of AutoProg, Li et al.
/// 2022, arXiv 2203.14509): that of n layers has evenly spaced blocks of the deepest, layer l block
/// floor(l * blocks / n). Each step of a training trains one of them.
struct ElasticDepth {
  std::vector<int64_t> layers;  ///< Of each, from 1 to the blocks.
  int64_t seed = 0;
  /// Layers of passes that are not differentiated; 0: the deepest network. May change between
  /// passes.
  int64_t evaluated = 0;

  /// Those that step `step` trains, each as likely as the others: the same on all ranks, and in a
  /// run that was stopped.
  int64_t OfStep(int64_t step) const {
    constexpr uint32_t kSite = SiteHash("elastic_depth");
    const PhiloxKey key{static_cast<uint64_t>(seed), static_cast<uint32_t>(step), kSite};
    PhiloxStream random(key);
    return layers[static_cast<size_t>(random.Below(static_cast<uint32_t>(layers.size())))];
  }
};

}  // namespace weft::engine
