#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over one group of `count` elements.
template <class T>
struct GroupQuantizeLoop {
  /// `block` is the Philox block of element 0.
  void (*quantize)(const PhiloxKey& key, uint64_t block, int bits, const T* x, int64_t count,
                   uint8_t* codes, float* scale);
  void (*dequantize)(int bits, const uint8_t* codes, const float* scale, T* y, int64_t count);
};
using GroupQuantizeKernels = FloatTypes<GroupQuantizeLoop>;

WEFT_ISA_TABLE(GroupQuantizeKernels)

}  // namespace weft::kernels::cpu
