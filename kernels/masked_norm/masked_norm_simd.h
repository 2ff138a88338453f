#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Pointers to contiguous rows [rows, width]; see masked_norm.h. Optional ones may be null.
template <class T>
struct MaskedNormForwardRows {
  const T* residual;
  const T* delta;   ///< or null
  T* residual_out;  ///< with delta
  const float* weight;
  const float* bias;  ///< null: RMS
  const float* mask;
  float columns;  ///< Sum of the mask.
  float epsilon;
  T* y;
  float* mean;  ///< null: RMS
  float* scale;
};

template <class T>
struct MaskedNormBackwardRows {
  const T* dy;
  const T* x;
  const float* weight;
  const float* mask;
  float columns;
  const float* mean;  ///< null: RMS
  const float* scale;
  const T* dresidual;  ///< or null
  T* dx;
  float* dweight;  ///< [width], added to
  float* dbias;    ///< [width], added to
};

/// Rows [begin, end).
template <class T>
struct MaskedNormLoops {
  void (*forward)(const MaskedNormForwardRows<T>&, int64_t begin, int64_t end, int64_t width);
  void (*backward)(const MaskedNormBackwardRows<T>&, int64_t begin, int64_t end, int64_t width);
};
using MaskedNormKernels = FloatTypes<MaskedNormLoops>;

WEFT_ISA_TABLE(MaskedNormKernels)

}  // namespace weft::kernels::cpu
