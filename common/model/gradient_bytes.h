#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_shape.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Bytes of gradients in addition to a rank's own sums, where gradients are sharded (ZeRO).
struct OpenGradients {
  int64_t bytes = 0;        ///< In memory at once, at most,
  int64_t in_transfer = 0;  ///< and of these in transfer to other ranks.
};

/// Those of zero_stage 2: buckets of at least `bucket_bytes` from the last parameter to the first,
/// each from its first gradient to the end of its reduction. Derived weights, with what is stacked
/// with them, have buckets of their own, which are gathered one by one after the last pass; then
/// the gradients of the sources of one weight are in memory, too. `model` with vocab_size resolved,
/// for tensor parallelism of degree `tensor`, or expert parallelism of degree `expert_ranks`.
/// `in_file`: gradients reside in a file, where no bucket spans two units. Gradients of `kept`
/// units (StreamedUnits) have their own memory and are in no bucket.
OpenGradients OpenGradientBytes(const ModelSpec& model, int64_t bucket_bytes, int64_t tensor = 1,
                                int64_t rows = 1, int64_t expert_ranks = 1, bool in_file = false,
                                const std::vector<int64_t>& kept = {});

/// Bytes of gradients in a file.
struct FiledGradients {
  /// Bytes of successive units, in memory while they are updated (FiledUnitsAhead).
  int64_t host = 0;
  int64_t file = 0;
  int64_t numbers = 0;  ///< Of the largest one that a rank updates.
};
/// Bytes for a rank with `shape` in a shard group of `shard_ranks`; `shares_gradients`: it has only
/// its part of each bucket.
FiledGradients FiledGradientBytes(const ModelShape& shape, int64_t bucket_bytes,
                                  int64_t shard_ranks = 1, bool shares_gradients = false);

/// Bytes of gradients over the link of a rank, in a step that the host updates.
struct GradientLinkBytes {
  int64_t down = 0;          ///< With the last micro-batch: of reduced ones what the rank updates.
  int64_t earlier_down = 0;  ///< With each one before it,
  int64_t earlier_up = 0;    ///< and of those, the sums that the next one adds to.
};
/// Bytes for a rank with `shape`, sharded by `zero_stage` over `shard_ranks` ranks (ShardRanks).
GradientLinkBytes GradientsOverLink(const ModelShape& shape, int64_t zero_stage,
                                    int64_t shard_ranks);

/// Bytes of the gradients of a block with nothing frozen. `model` with vocab_size resolved; for one
/// of `tensor` tensor-parallel ranks, in a grid of `rows`.
int64_t BlockGradientBytes(const ModelSpec& model, int64_t tensor = 1, int64_t rows = 1);

}  // namespace weft
