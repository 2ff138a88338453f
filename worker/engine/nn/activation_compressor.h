#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

/// Quantises saved tensors to 8, 4 or 2 bits an element, with a scale for every 128
/// (kernels/group_quantize), rounded at random so that their mean is the tensor (Chen et al. 2021,
/// "ActNN", arXiv 2104.14129). The random numbers depend on the step, the layer, the number of
/// tensors it has saved before, and the place in the global batch, so that a repeated step has the
/// same bits. A rank's part of a tensor has the bits that it has in the whole if it consists of
/// whole groups: rows of a multiple of 128 columns, or chunks of a multiple of 128 elements.
/// Replicated tensors have the same bits on each rank. Another policy keeps the quantised tensors,
/// and those that must be restored exactly.
class ActivationCompressor : public SavedTensorPolicy {
 public:
  struct Options {
    int64_t bits = 8;
    int64_t layer = 0;
    const TensorParallel* tensor = nullptr;    ///< Tensor-parallel ranks, or none.
    const ContextParallel* context = nullptr;  ///< Context-parallel ranks, or none.
    SavedTensorPolicy* below = nullptr;        ///< Or none.
  };
  /// Compresses for one pass of a layer over a batch; all outlive this.
  ActivationCompressor(const Options& options, const TokenBatch& batch)
      : options_(options), batch_(batch) {}

  Result<SavedTensor> Keep(Context& context, const Tensor& tensor, const ColumnPart& part) override;
  SavedTensor KeepExactly(Tensor tensor) override;

 private:
  std::vector<RowSpan> SpansOf(int64_t rows) const;
  /// Whether a tensor with `rows` rows holds this rank's part of the tokens (sequence parallelism).
  bool IsTokenShard(int64_t rows) const;
  /// The part that this rank has of a tensor with `columns` columns. An empty `part` is the
  /// residual stream, whose features 2-D tensor parallelism partitions.
  ColumnPart PartOf(const ColumnPart& part, int64_t columns) const;

  Options options_;
  const TokenBatch& batch_;
  int64_t kept_ = 0;
};

}  // namespace weft::engine
