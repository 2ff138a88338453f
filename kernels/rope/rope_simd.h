#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Rotates the heads of one token, 2 * half elements each; `sign` -1 turns the other way.
template <class T>
struct RopeLoops {
  void (*rotate)(T* x, const float* cosines, const float* sines, float sign, int64_t heads,
                 int64_t half);
};
using RopeKernels = FloatTypes<RopeLoops>;

WEFT_ISA_TABLE(RopeKernels)

}  // namespace weft::kernels::cpu
