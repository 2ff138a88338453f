#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Elements are dropped where the upper 24 bits of their word are below `threshold`, and multiplied
/// by `scale` otherwise. `block` is the Philox block of element 0. y may be x.
struct DropoutDraw {
  PhiloxKey key;
  int32_t threshold;
  float scale;
};
struct DropoutKernels {
  void (*f32)(const DropoutDraw& draw, uint64_t block, const float* x, float* y, int64_t count);
  void (*bf16)(const DropoutDraw& draw, uint64_t block, const BFloat16* x, BFloat16* y,
               int64_t count);
};

WEFT_ISA_TABLE(DropoutKernels)

}  // namespace weft::kernels::cpu
