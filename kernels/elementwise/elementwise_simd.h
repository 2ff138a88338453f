#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs.
struct ElementwiseKernels {
  void (*to_bf16)(const float* x, BFloat16* y, int64_t count);
  void (*to_f32)(const BFloat16* x, float* y, int64_t count);
  void (*add_f32)(const float* a, const float* b, float* y, int64_t count);
  void (*add_bf16)(const BFloat16* a, const BFloat16* b, BFloat16* y, int64_t count);
  void (*scale_f32)(float* x, float factor, int64_t count);
  void (*scale_bf16)(BFloat16* x, float factor, int64_t count);
};

WEFT_ISA_TABLE(ElementwiseKernels)

}  // namespace weft::kernels::cpu
