#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

/// Keeps tensors in 8, 4 or 2 bits an element, with a scale for every 128 (kernels/group_quantize),
/// rounded at random so that their mean is the tensor (Chen et al. 2021, "ActNN", arXiv
/// 2104.14129). The random numbers are those of the step, the layer, how many tensors it has kept
/// before, and the place in the global batch, so that a step that is repeated has the same bits.
/// Of tensors that ranks share the parts have the bits that they have in the whole, where they
/// consist of whole groups of it: rows of a multiple of 128 columns, or chunks of as many elements.
/// What all of these ranks have has the same bits on each. What is to come back as it was, and the
/// codes, another keeper keeps.
class ActivationCompressor : public TensorKeeper {
 public:
  struct Options {
    int64_t bits = 8;
    int64_t layer = 0;
    const TensorParallel* tensor = nullptr;    ///< Ranks that share matrices, or none.
    const ContextParallel* context = nullptr;  ///< Ranks that share sequences, or none.
    TensorKeeper* below = nullptr;             ///< Or none.
  };
  /// For one pass of a layer over a batch; all outlive this.
  ActivationCompressor(const Options& options, const TokenBatch& batch)
      : options_(options), batch_(batch) {}

  Result<SavedTensor> Keep(Context& context, const Tensor& tensor, const ColumnPart& part) override;
  SavedTensor KeepExactly(Tensor tensor) override;

 private:
  /// Successive rows of a tensor, of successive tokens.
  struct Span {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t token = 0;  ///< The first, in the global batch.
  };
  std::vector<Span> SpansOf(int64_t rows) const;
  /// Of a tensor with so many rows, this rank has some of all; not those that it shares alone.
  bool DealtOut(int64_t rows) const;
  /// Of a tensor with so many columns: those of which nothing is said are of the residual stream,
  /// whose features the rows of a grid deal out.
  ColumnPart PartOf(const ColumnPart& part, int64_t columns) const;

  Options options_;
  const TokenBatch& batch_;
  int64_t kept_ = 0;
};

}  // namespace weft::engine
