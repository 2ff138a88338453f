#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// A contiguous slice of the flat gradient buffer that is reduced in one piece.
struct GradientBucket {
  int64_t begin = 0;        ///< First element.
  int64_t end = 0;          ///< One past the last.
  int64_t parameters = 0;   ///< In it, of those whose gradients the backward pass computes.
  bool of_experts = false;  ///< All of it, with expert parallelism (ParameterList::SetExpertRank).
  bool of_derived = false;  ///< A derived matrix is in it: its sums are needed whole (SplitDerived
                            ///< where gradients are placed).
  bool updated = false;     ///< Something in it is updated.
};

/// How the flat gradient buffer is cut: from its end, since the backward pass completes the last
/// parameters first, into slices of whole parameters and stacks of at least `bucket_bytes` (the
/// last slice, at the front of the buffer, may be smaller, and, with expert parallelism, those at
/// the borders between experts and the rest, between derived matrices and the rest; of gradients in
/// a file none is of two units). Li et al. 2020, "PyTorch Distributed", section 3.2. Nothing fills
/// those of sources: each rank computes their gradients from the sums of derived matrices. With
/// sharded values (ParameterSet::ShardValues) each trained flat parameter is a bucket.
struct BucketLayout {
  std::vector<GradientBucket> buckets;  ///< In the order they are filled, those of sources first.
  std::vector<int64_t> bucket_of;       ///< By parameter; -1 for a frozen one.
};

BucketLayout CutBuckets(const ParameterSet& parameters, int64_t bucket_bytes);

}  // namespace weft::engine
