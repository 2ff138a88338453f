#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Pointers to contiguous rows [rows, width]; see rms_norm.h. Optional ones may be null.
template <class T>
struct RmsNormForwardRows {
  const T* residual;
  const T* delta;   ///< or null
  T* residual_out;  ///< with delta
  const float* weight;
  float epsilon;
  T* y;
  float* rrms;
};

template <class T>
struct RmsNormBackwardRows {
  const T* dy;
  const T* x;
  const float* weight;
  const float* rrms;
  const T* dresidual;  ///< or null
  T* dx;
  float* dweight;  ///< [width], added to
};

/// Rows [begin, end).
template <class T>
struct RmsNormLoops {
  void (*forward)(const RmsNormForwardRows<T>&, int64_t begin, int64_t end, int64_t width);
  void (*backward)(const RmsNormBackwardRows<T>&, int64_t begin, int64_t end, int64_t width);
};
using RmsNormKernels = FloatTypes<RmsNormLoops>;

WEFT_ISA_TABLE(RmsNormKernels)

}  // namespace weft::kernels::cpu
