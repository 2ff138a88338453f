#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over the `width` elements of a row.
template <class T>
struct MoeCombineLoops {
  /// y = the sum of `count` rows, each times its weight.
  void (*combine)(const T* const* rows, const float* weights, int64_t count, T* y, int64_t width);
  /// dx = weight * dy; returns dy . x.
  float (*backward)(const T* dy, const T* x, float weight, T* dx, int64_t width);
};
using MoeCombineKernels = FloatTypes<MoeCombineLoops>;

WEFT_ISA_TABLE(MoeCombineKernels)

}  // namespace weft::kernels::cpu
