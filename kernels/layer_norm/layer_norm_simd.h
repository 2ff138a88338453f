#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

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
struct LayerNormKernels {
  void (*forward_f32)(const LayerNormForwardRows<float>&, int64_t begin, int64_t end,
                      int64_t width);
  void (*forward_bf16)(const LayerNormForwardRows<BFloat16>&, int64_t begin, int64_t end,
                       int64_t width);
  void (*backward_f32)(const LayerNormBackwardRows<float>&, int64_t begin, int64_t end,
                       int64_t width);
  void (*backward_bf16)(const LayerNormBackwardRows<BFloat16>&, int64_t begin, int64_t end,
                        int64_t width);
};

WEFT_ISA_TABLE(LayerNormKernels)

}  // namespace weft::kernels::cpu
