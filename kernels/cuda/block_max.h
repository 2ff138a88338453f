#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// The largest value over the block, in all its threads. All of them, whole warps, call it
/// together. Floats that are not negative order like their bits, and NaN above all.
__device__ inline uint32_t BlockMax(uint32_t value) {
  constexpr int kMostWarps = 32;
  WEFT_SHARED(largest, uint32_t[kMostWarps]);
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, value, bits);
    value = other > value ? other : value;
  }
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) {
    value = largest[w] > value ? largest[w] : value;
  }
  // The next call writes them again.
  __syncthreads();
  return value;
}

}  // namespace weft::kernels::cuda
