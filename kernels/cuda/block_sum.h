#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Replaces each value by its sum over the block, in a fixed order. All threads of the block, whole
/// warps, call it together.
template <class T, int kValues>
__device__ void BlockSum(T (&values)[kValues]) {
  constexpr int kMostWarps = 32;
  WEFT_SHARED(sums, T[kValues][kMostWarps]);
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned warps = blockDim.x * blockDim.y / kWarp;
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    values[k] = WarpSum(values[k]);
    if (thread % kWarp == 0) sums[k][thread / kWarp] = values[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    values[k] = 0;
    for (unsigned w = 0; w < warps; ++w) values[k] += sums[k][w];
  }
  // The next call writes them again.
  __syncthreads();
}

}  // namespace weft::kernels::cuda
