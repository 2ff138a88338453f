#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements of a group.
template <class T>
struct QuantizeInt8Loops {
  /// The bits of the largest |x[i]|, those of a NaN if any.
  uint32_t (*largest)(const T* x, int64_t count);
  /// Quantised values of x[i] * factor, which is within +-127.
  void (*quantize)(const T* x, float factor, uint8_t* q, int64_t count);
  void (*dequantize)(const uint8_t* q, float scale, T* y, int64_t count);
};
using QuantizeInt8Kernels = FloatTypes<QuantizeInt8Loops>;

WEFT_ISA_TABLE(QuantizeInt8Kernels)

}  // namespace weft::kernels::cpu
