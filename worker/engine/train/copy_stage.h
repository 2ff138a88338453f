#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

/// Brings the batches of a step to a CUDA device while the one before it runs: through pinned
/// memory and on a stream of their own, into memory that two steps take in turn. Not thread-safe.
class CopyStage : public BatchStage {
 public:
  static Result<std::unique_ptr<CopyStage>> New(Context& context);

  /// The batches that follow belong to the next step; those sent since Use are dropped.
  Status StartStep();
  Result<Space> Take(Context& context, size_t bytes) override;
  Status Send(Context& context, const Space& space, size_t bytes) override;

  /// The work enqueued from now on reads the batches of the step last started; that of the one
  /// before has been enqueued.
  Status Use(Context& context);

 private:
  struct Piece {
    Tensor tensor;
    kernels::cuda::PinnedMemory pinned;
  };
  /// The memory of every other step.
  struct Half {
    std::vector<Piece> pieces;
    size_t taken = 0;
    kernels::cuda::Event copied;
    kernels::cuda::Event free;  ///< After everything that reads it.
  };

  Status Grow(Context& context, Piece& piece, size_t bytes);

  std::unique_ptr<kernels::cuda::StreamState> stream_;
  std::array<Half, 2> halves_;
  size_t reading_ = 0;  ///< The other half is being filled.
};

}  // namespace weft::engine
