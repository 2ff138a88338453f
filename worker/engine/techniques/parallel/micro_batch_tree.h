#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Sums what successive micro-batches of a step leave of some f32 numbers in a complete binary
/// tree: each two that follow each other, then each two of these sums, and so on. So the sum over
/// all micro-batches of a step has the same bits wherever the tree is cut into subtrees, which
/// ranks sum on their own (Reduction::kPairwiseSum adds those of the ranks). Of each size of
/// subtree one sum waits for the next of its size: log2(micro-batches) numbers for each one that is
/// summed. Ranges of the numbers are independent of each other. Not thread-safe.
class MicroBatchTree {
 public:
  MicroBatchTree() = default;

  /// For `count` numbers and steps of `micro_batches`, a power of two. kExhausted without memory.
  static Result<MicroBatchTree> New(Context& context, int64_t count, int64_t micro_batches);

  /// Where [first, first + count) of micro-batch `number` would have to be copied, and is best
  /// written at once; empty where it is added to another one.
  TensorView PlaceOf(int64_t number, int64_t first, int64_t count) const;

  /// Enqueues the addition of [first, first + values) of micro-batch `number`. All micro-batches of
  /// a range come in order. `values` is overwritten, unless it is PlaceOf. With the last one,
  /// `sum`, which may be `values`, becomes the sum.
  Status Add(const Stream& stream, int64_t number, int64_t first, const TensorView& values,
             const TensorView& sum) const;

 private:
  bool is_last(int64_t number) const { return number + 1 == micro_batches_; }

  int64_t micro_batches_ = 1;
  std::vector<Tensor> waiting_;  ///< By the logarithm of the size of a subtree: its sums.
};

}  // namespace weft::engine
