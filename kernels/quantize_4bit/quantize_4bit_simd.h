#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Dequantises one block of `count` elements: y[i] = values[code i] * scale, two codes a byte, the
/// first in its upper half.
template <class T>
struct FourBitLoop {
  void (*dequantize)(const uint8_t* codes, const float* values, float scale, T* y, int64_t count);
};
using FourBitKernels = FloatTypes<FourBitLoop>;

WEFT_ISA_TABLE(FourBitKernels)

}  // namespace weft::kernels::cpu
