#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs as swiglu.h says, y may be null in
/// the backward pass.
struct SwiGluKernels {
  void (*forward_f32)(const float* gate, const float* up, float* y, int64_t count);
  void (*forward_bf16)(const BFloat16* gate, const BFloat16* up, BFloat16* y, int64_t count);
  void (*backward_f32)(const float* dy, const float* gate, const float* up, float* dgate,
                       float* dup, float* y, int64_t count);
  void (*backward_bf16)(const BFloat16* dy, const BFloat16* gate, const BFloat16* up,
                        BFloat16* dgate, BFloat16* dup, BFloat16* y, int64_t count);
};

WEFT_ISA_TABLE(SwiGluKernels)

}  // namespace weft::kernels::cpu
