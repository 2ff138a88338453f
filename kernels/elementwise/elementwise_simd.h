#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs.
template <class T>
struct ElementwiseLoops {
  void (*from_f32)(const float* x, T* y, int64_t count);
  void (*to_f32)(const T* x, float* y, int64_t count);
  void (*add)(const T* a, const T* b, T* y, int64_t count);
  void (*scale)(T* x, float factor, int64_t count);
  void (*add_scaled)(const T* x, float factor, float keep, float* y, int64_t count);
  void (*apply_mask)(const uint8_t* mask, T* x, int64_t count);
};
using ElementwiseKernels = FloatTypes<ElementwiseLoops>;

WEFT_ISA_TABLE(ElementwiseKernels)

}  // namespace weft::kernels::cpu
