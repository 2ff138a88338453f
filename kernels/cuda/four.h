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

/// Rounds stochastically with the words of `element` and the next ones.
__device__ __forceinline__ void RoundFour(BFloat16* to, int count, bool wide,
                                          const float (&from)[4], const PhiloxKey& key,
                                          int64_t element) {
  const uint64_t block = static_cast<uint64_t>(element) / 4;
  Philox4 words = Philox(key, block);
  // A part of a tensor may begin within a block. An index would put the words into memory.
  if (const int past = static_cast<int>(element % 4); past > 0) {
    const Philox4 next = Philox(key, block + 1);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (k >= past) continue;
      words.v[0] = words.v[1];
      words.v[1] = words.v[2];
      words.v[2] = words.v[3];
      words.v[3] = next.v[k];
    }
  }
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
