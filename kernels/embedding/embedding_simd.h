#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Rows of `width` contiguous elements. `b` may be null and then counts as zero.
template <class T>
struct EmbeddingLoops {
  void (*add_f32)(const float* a, const float* b, T* out, int64_t width);
  void (*add_bf16)(const BFloat16* a, const BFloat16* b, T* out, int64_t width);
  void (*accumulate)(const T* from, float* to, int64_t width);

  void Add(const float* a, const float* b, T* out, int64_t width) const {
    add_f32(a, b, out, width);
  }
  void Add(const BFloat16* a, const BFloat16* b, T* out, int64_t width) const {
    add_bf16(a, b, out, width);
  }
};
using EmbeddingKernels = FloatTypes<EmbeddingLoops>;

WEFT_ISA_TABLE(EmbeddingKernels)

}  // namespace weft::kernels::cpu
