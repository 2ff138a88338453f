#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/data/batch.h"

namespace weft::engine {

/// Gives the sequences of each step. What it answers depends only on its data, its seed and the
/// arguments, so that any split over ranks and micro-batches, and any resumed run, sees the same.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Sequences of one pass over the data.
  virtual int64_t Sequences() const = 0;

  /// Sequences [first_sequence, first_sequence + count) of the global batch of `step`. A source for
  /// evaluation has no order to shuffle: step is 0 and the range lies within [0, Sequences()).
  virtual Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) = 0;
};

}  // namespace weft::engine
