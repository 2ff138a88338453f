#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_shape.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Bytes of gradients, beside a rank's own sums, where ranks share these out.
struct OpenGradients {
  int64_t bytes = 0;       ///< In memory at once, at most,
  int64_t travelling = 0;  ///< and of these under way to other ranks.
};

/// With zero_stage 2: of buckets of at least `bucket_bytes` from the last parameter to the first,
/// each from its first gradient to the end of its reduction. `model` with vocab_size resolved;
/// `tensor` ranks share each matrix, or `expert_ranks` the experts. `in_file`: gradients stand in a
/// file, where no bucket is of two units. Of `kept` units (StreamedUnits) gradients have memory of
/// their own, and buckets are of others alone.
OpenGradients OpenGradientBytes(const ModelSpec& model, int64_t bucket_bytes, int64_t tensor = 1,
                                int64_t rows = 1, int64_t expert_ranks = 1, bool in_file = false,
                                const std::vector<int64_t>& kept = {});

/// Of gradients that stand in a file.
struct FiledGradients {
  /// Bytes of units that follow each other, in memory while they are updated (FiledUnitsAhead).
  int64_t host = 0;
  int64_t file = 0;
  int64_t numbers = 0;  ///< Of the largest one that a rank updates.
};
/// Of a rank with `shape`, of `sharers` that share updates; `shares_gradients`: of each bucket it
/// has its part alone.
FiledGradients FiledGradientBytes(const ModelShape& shape, int64_t bucket_bytes,
                                  int64_t sharers = 1, bool shares_gradients = false);

/// Bytes of gradients over the link of a rank, in a step whose update is made on the host.
struct GradientLinkBytes {
  int64_t down = 0;          ///< With the last micro-batch: of reduced ones what the rank updates.
  int64_t earlier_down = 0;  ///< With each one before it,
  int64_t earlier_up = 0;    ///< and of those, the sums that the next one adds to.
};
/// Of a rank with `shape`, of `sharers` that share what `zero_stage` says (ShardRanks).
GradientLinkBytes GradientsOverLink(const ModelShape& shape, int64_t zero_stage, int64_t sharers);

/// Bytes of the gradients of a block with nothing frozen. `model` with vocab_size resolved; of a
/// rank of `tensor` that share each matrix, as a grid of `rows`.
int64_t BlockGradientBytes(const ModelSpec& model, int64_t tensor = 1, int64_t rows = 1);

}  // namespace weft
