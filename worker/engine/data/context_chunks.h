#pragma once

#include <cstdint>
#include <memory>

#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// Takes the part that rank `rank` of `ranks` has of a batch whose sequences they share: of the 2 x
/// ranks chunks of each sequence those of numbers `rank` and 2 x ranks - 1 - rank, one behind the
/// other, with the targets and positions that they have in the whole. target_count, part_targets
/// and padding_tokens count what is here; rows that are padding as a whole stay so. kInvalid:
/// sequences that cannot be cut so, rows with padding behind text, documents that are masked from
/// each other, other batches than those of causal language models.
Result<Batch> ChunksOfRank(const Batch& whole, int64_t rank, int64_t ranks);

/// The sequences of another source, of each the chunks of one rank.
class ContextChunks : public BatchSource {
 public:
  ContextChunks(std::unique_ptr<BatchSource> source, int64_t rank, int64_t ranks)
      : source_(std::move(source)), rank_(rank), ranks_(ranks) {}

  int64_t Sequences() const override { return source_->Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

 private:
  const std::unique_ptr<BatchSource> source_;
  const int64_t rank_;
  const int64_t ranks_;
};

}  // namespace weft::engine
