#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/rng.h"

namespace weft::engine {

/// Networks of several sizes that share their parameters (the elastic supernet of AutoProg, Li et
/// al. 2022, arXiv 2203.14509): that of n layers has evenly spaced blocks of the deepest, layer l
/// block floor(l * blocks / n); that of smaller images has the table of positions resized
/// (models/resized_positions.h). Each step of a training trains one of them.
struct ElasticNetwork {
  std::vector<int64_t> layers;       ///< Of each, from 1 to the blocks.
  std::vector<int64_t> image_sizes;  ///< Of their images; empty: all have those of the model.
  int64_t seed = 0;
  /// Layers of passes that are not differentiated; 0: the deepest network. May change between
  /// passes.
  int64_t evaluated = 0;

  /// Those that step `step` trains, each as likely as the others: the same on all ranks, and in a
  /// run that was stopped. Images are drawn where they are read (data/elastic_images.h).
  int64_t LayersOfStep(int64_t step) const {
    constexpr uint32_t kSite = SiteHash("elastic_depth");
    const PhiloxKey key{static_cast<uint64_t>(seed), static_cast<uint32_t>(step), kSite};
    PhiloxStream random(key);
    return layers[static_cast<size_t>(random.Below(static_cast<uint32_t>(layers.size())))];
  }
};

}  // namespace weft::engine
