#pragma once

// Four neighbouring elements, those of a Philox block, or the fewer that are left at the end: what
// a thread of the optimizers treats at a time.

#include <cstdint>

#include <cuda_runtime.h>

#include "common/rng.h"
#include "kernels/cuda/stochastic_round.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Reads `count` of four elements, at once when `wide` (count is 4 and `from` is aligned to 16
/// bytes, or 8 in bf16); the others are 0.
template <class T>
__device__ __forceinline__ void LoadFour(const T* from, int count, bool wide, float (&to)[4]) {
  if (wide) {
    LoadFloats(from, to);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = k < count ? Widen(from[k]) : 0.0f;
}

__device__ __forceinline__ void StoreFour(float* to, int count, bool wide, const float (&from)[4]) {
  if (wide) {
    StoreFloats(to, from);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < count) to[k] = from[k];
  }
}

/// Rounds stochastically with the words of `element`, a multiple of 4, and the next.
__device__ __forceinline__ void RoundFour(BFloat16* to, int count, bool wide,
                                          const float (&from)[4], const PhiloxKey& key,
                                          int64_t element) {
  const Philox4 words = Philox(key, static_cast<uint64_t>(element) / 4);
  BFloat16 rounded[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) rounded[k] = RoundStochastically(from[k], words.v[k]);
  if (wide) {
    ptx::Store8(to, uint2{rounded[0].bits | uint32_t{rounded[1].bits} << 16,
                          rounded[2].bits | uint32_t{rounded[3].bits} << 16});
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < count) to[k] = rounded[k];
  }
}

}  // namespace weft::kernels::cuda
