#include "kernels/sparse24/sparse24.h"

namespace weft::kernels::cuda {

Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device, int64_t, int64_t, DType, MaskKind) {
  return UnavailableError("SparseWeight: has no CUDA kernel in this build; hint: train on the CPU");
}

}  // namespace weft::kernels::cuda

WEFT_NO_CUDA_OP(SparseForward, SparseForwardArgs)
WEFT_NO_CUDA_OP(SparseBackwardInput, SparseBackwardInputArgs)
WEFT_NO_CUDA_OP(SparseBackwardWeight, SparseBackwardWeightArgs)
WEFT_NO_CUDA_OP(SampledBackwardWeight, SampledBackwardWeightArgs)
