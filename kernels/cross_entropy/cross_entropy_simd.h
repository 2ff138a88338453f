#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

struct CrossEntropyKernels {
  /// Loss of one row of logits against column `target`. With a `scratch` of `vocabulary` floats the
  /// row becomes its gradient times `grad_scale`, zero from `vocabulary` to `columns`.
  float (*row_f32)(float* logits, int64_t columns, int64_t vocabulary, int64_t target,
                   float grad_scale, float* scratch);
  float (*row_bf16)(BFloat16* logits, int64_t columns, int64_t vocabulary, int64_t target,
                    float grad_scale, float* scratch);
};

WEFT_ISA_TABLE(CrossEntropyKernels)

}  // namespace weft::kernels::cpu
