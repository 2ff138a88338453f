#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// residual_out = residual + delta (when delta is given), y = LayerNorm(residual_out) with fp32
/// statistics (Ba et al. 2016, arXiv 1607.06450).
struct LayerNormForwardArgs {
  TensorView residual;      ///< [rows, width] f32 or bf16
  TensorView delta;         ///< [rows, width] same type, or none
  TensorView residual_out;  ///< [rows, width] same type; may be residual itself; none without delta
  TensorView weight;        ///< [width] f32
  TensorView bias;          ///< [width] f32
  float epsilon = 1e-5f;
  TensorView y;     ///< [rows, width] same type
  TensorView mean;  ///< [rows] f32
  TensorView rstd;  ///< [rows] f32, 1 / sqrt(variance + epsilon)
};

/// dx = gradient through the norm + dresidual (the gradient of the residual, if given).
struct LayerNormBackwardArgs {
  TensorView dy;         ///< [rows, width]
  TensorView x;          ///< [rows, width] residual_out of the forward pass
  TensorView weight;     ///< [width] f32
  TensorView mean;       ///< [rows] f32
  TensorView rstd;       ///< [rows] f32
  TensorView dresidual;  ///< [rows, width], or none
  TensorView dx;         ///< [rows, width]; may be dresidual itself
  TensorView dweight;    ///< [width] f32, added to; or none
  TensorView dbias;      ///< [width] f32, added to; or none
};

/// Deterministic for any number of threads.
WEFT_DEVICE_OP(LayerNormForward, LayerNormForwardArgs)
WEFT_DEVICE_OP(LayerNormBackward, LayerNormBackwardArgs)

}  // namespace weft::kernels
