#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Pointers to contiguous rows [rows, width]; see layer_norm.h. Optional ones may be null.
template <class T>
struct LayerNormForwardRows {
  const T* residual;
  const T* delta;   ///< or null
  T* residual_out;  ///< with delta
  const float* weight;
  const float* bias;
  float epsilon;
  T* y;
  float* mean;
  float* rstd;
};

template <class T>
struct LayerNormBackwardRows {
  const T* dy;
  const T* x;
  const float* weight;
  const float* mean;
  const float* rstd;
  const T* dresidual;  ///< or null
  T* dx;
  float* dweight;  ///< [width], added to
  float* dbias;    ///< [width], added to
};

/// Rows [begin, end).
template <class T>
struct LayerNormLoops {
  void (*forward)(const LayerNormForwardRows<T>&, int64_t begin, int64_t end, int64_t width);
  void (*backward)(const LayerNormBackwardRows<T>&, int64_t begin, int64_t end, int64_t width);
};
using LayerNormKernels = FloatTypes<LayerNormLoops>;

WEFT_ISA_TABLE(LayerNormKernels)

}  // namespace weft::kernels::cpu
