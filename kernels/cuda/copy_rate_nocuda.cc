#include "kernels/cuda/copy_rate.h"

namespace weft::kernels::cuda {

Result<CopyRates> MeasureCopies(int /*device*/, size_t /*bytes*/) {
  return UnavailableError("this build has no CUDA back end; hint: cmake --preset cuda");
}

Result<double> MeasurePeerCopy(int /*device*/, int /*peer*/, size_t /*bytes*/) {
  return UnavailableError("this build has no CUDA back end; hint: cmake --preset cuda");
}

}  // namespace weft::kernels::cuda
