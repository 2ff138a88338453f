#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

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
struct RmsNormKernels {
  void (*forward_f32)(const RmsNormForwardRows<float>&, int64_t begin, int64_t end, int64_t width);
  void (*forward_bf16)(const RmsNormForwardRows<BFloat16>&, int64_t begin, int64_t end,
                       int64_t width);
  void (*backward_f32)(const RmsNormBackwardRows<float>&, int64_t begin, int64_t end,
                       int64_t width);
  void (*backward_bf16)(const RmsNormBackwardRows<BFloat16>&, int64_t begin, int64_t end,
                        int64_t width);
};

WEFT_ISA_TABLE(RmsNormKernels)

}  // namespace weft::kernels::cpu
