#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

template <class T>
struct QuantizeFp8Loops {
  /// FP8 values of x[i] * scale in q; returns the bits of the largest |x[i]|, those of a NaN if
  /// any.
  uint32_t (*e4m3)(const T* x, float scale, uint8_t* q, int64_t count);
  uint32_t (*e5m2)(const T* x, float scale, uint8_t* q, int64_t count);
  /// The latter alone.
  uint32_t (*amax)(const T* x, int64_t count);
};

struct QuantizeFp8Kernels {
  QuantizeFp8Loops<float> f32;
  QuantizeFp8Loops<BFloat16> bf16;
};

WEFT_ISA_TABLE(QuantizeFp8Kernels)

}  // namespace weft::kernels::cpu
