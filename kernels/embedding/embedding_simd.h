#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Rows of `width` contiguous elements. `b` may be null and then counts as zero.
struct EmbeddingKernels {
  void (*add_f32)(const float* a, const float* b, float* out, int64_t width);
  void (*add_bf16)(const float* a, const float* b, BFloat16* out, int64_t width);
  void (*accumulate_f32)(const float* from, float* to, int64_t width);
  void (*accumulate_bf16)(const BFloat16* from, float* to, int64_t width);
};

WEFT_ISA_TABLE(EmbeddingKernels)

}  // namespace weft::kernels::cpu
