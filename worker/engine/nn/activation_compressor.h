#pragma once

#include <cstdint>

#include "worker/engine/autograd/tape.h"

namespace weft::engine {

/// Keeps tensors in 8, 4 or 2 bits an element, with a scale for every 128 (kernels/group_quantize),
/// rounded at random so that their mean is the tensor (Chen et al. 2021, "ActNN", arXiv
/// 2104.14129). The random numbers are those of the step, the layer, how many tensors it has kept
/// before, and the place in the global batch, so that a step that is repeated has the same bits.
/// What is to come back as it was, and the codes, another keeper keeps.
class ActivationCompressor : public TensorKeeper {
 public:
  /// For one pass of `layer` over a batch that begins with token `first_token`. `below`: or none.
  ActivationCompressor(int64_t bits, int64_t layer, int64_t first_token, TensorKeeper* below)
      : bits_(bits), layer_(layer), first_token_(first_token), below_(below) {}

  Result<SavedTensor> Keep(Context& context, const Tensor& tensor) override;
  SavedTensor KeepExactly(Tensor tensor) override;

 private:
  int64_t bits_;
  int64_t layer_;
  int64_t first_token_;
  TensorKeeper* below_;
  int64_t kept_ = 0;
};

}  // namespace weft::engine
