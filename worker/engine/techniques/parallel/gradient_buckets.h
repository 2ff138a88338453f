#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// A contiguous slice of the flat gradient buffer that is reduced in one piece.
struct GradientBucket {
  int64_t begin = 0;        ///< First element.
  int64_t end = 0;          ///< One past the last.
  int64_t parameters = 0;   ///< Parameters in it.
  bool of_experts = false;  ///< All of it, with expert parallelism (ParameterList::SetExpertRank).
};

/// How the flat gradient buffer is cut: from its end, since the backward pass completes the last
/// parameters first, into slices of whole parameters and stacks of at least `bucket_bytes` (the
/// last slice, at the front of the buffer, may be smaller, and, with expert parallelism, those at
/// the borders between experts and the rest; of gradients in a file none is of two units). Li et
/// al. 2020, "PyTorch Distributed", section 3.2. With sharded values (ParameterSet::ShardValues)
/// each trained flat parameter is a bucket.
struct BucketLayout {
  std::vector<GradientBucket> buckets;  ///< In the order they are filled.
  std::vector<int64_t> bucket_of;       ///< By parameter; -1 for a frozen one and for factors.
};

BucketLayout CutBuckets(const ParameterSet& parameters, int64_t bucket_bytes);

}  // namespace weft::engine
