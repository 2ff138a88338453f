#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

struct LinearFp8Kernels {
  /// The numbers that FP8 values are, which bf16 holds exactly.
  void (*widen_e4m3)(const uint8_t* codes, BFloat16* to, int64_t count);
  void (*widen_e5m2)(const uint8_t* codes, BFloat16* to, int64_t count);
  /// c = sum scale_a scale_b + bias, which may be null.
  void (*finish)(const float* sum, float scale_a, float scale_b, const BFloat16* bias, BFloat16* c,
                 int64_t count);
  /// c = sum scale_a scale_b, added to c when `accumulate`.
  void (*finish_f32)(const float* sum, float scale_a, float scale_b, bool accumulate, float* c,
                     int64_t count);
};

WEFT_ISA_TABLE(LinearFp8Kernels)

}  // namespace weft::kernels::cpu
