#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "common/rng.h"

namespace weft::kernels::cuda {

/// The random words of neighbouring elements: of one, or of a multiple of 4 from one on whose
/// number is a multiple of 4.
template <int kCount>
__device__ __forceinline__ void RandomWords(const PhiloxKey& key, uint64_t element,
                                            uint32_t (&words)[kCount]) {
  if constexpr (kCount == 1) {
    const Philox4 four = Philox(key, element / 4);
    // An index would put them into memory.
    const uint32_t even = element % 4 == 0 ? four.v[0] : four.v[2];
    const uint32_t odd = element % 4 == 1 ? four.v[1] : four.v[3];
    words[0] = element % 2 == 0 ? even : odd;
  } else {
    static_assert(kCount % 4 == 0);
#pragma unroll
    for (int block = 0; block < kCount / 4; ++block) {
      const Philox4 four = Philox(key, element / 4 + static_cast<uint64_t>(block));
#pragma unroll
      for (int k = 0; k < 4; ++k) words[4 * block + k] = four.v[k];
    }
  }
}

}  // namespace weft::kernels::cuda
