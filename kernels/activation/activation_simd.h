#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs, except that `y` may not be `x`
/// or `dy`.
struct GeluKernels {
  void (*forward_f32)(const float* x, float* y, int64_t count);
  void (*forward_bf16)(const BFloat16* x, BFloat16* y, int64_t count);
  void (*backward_f32)(const float* dy, const float* x, float* dx, float* y, int64_t count);
  void (*backward_bf16)(const BFloat16* dy, const BFloat16* x, BFloat16* dx, BFloat16* y,
                        int64_t count);
};

WEFT_ISA_TABLE(GeluKernels)

}  // namespace weft::kernels::cpu
