#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Rotates the heads of one token, 2 * half elements each; `sign` -1 turns the other way.
struct RopeKernels {
  void (*rotate_f32)(float* x, const float* cosines, const float* sines, float sign, int64_t heads,
                     int64_t half);
  void (*rotate_bf16)(BFloat16* x, const float* cosines, const float* sines, float sign,
                      int64_t heads, int64_t half);
};

WEFT_ISA_TABLE(RopeKernels)

}  // namespace weft::kernels::cpu
