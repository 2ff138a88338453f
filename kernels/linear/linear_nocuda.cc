#include "kernels/linear/linear.h"

WEFT_NO_CUDA_OP(LinearForward, LinearForwardArgs)
WEFT_NO_CUDA_OP(LinearBackwardInput, LinearBackwardInputArgs)
WEFT_NO_CUDA_OP(LinearBackwardWeight, LinearBackwardWeightArgs)

namespace weft::kernels::cuda {

Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device, int64_t, int64_t, DType) {
  return UnavailableError(
      "NewPackedWeight: this build has no CUDA back end; hint: cmake --preset cuda");
}

}  // namespace weft::kernels::cuda
