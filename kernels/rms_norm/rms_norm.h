#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// residual_out = residual + delta (when delta is given), y = weight * residual_out / RMS with
/// RMS = sqrt(mean(residual_out^2) + epsilon) in fp32 (Zhang and Sennrich 2019, arXiv 1910.07467).
struct RmsNormForwardArgs {
  TensorView residual;      ///< [rows, width] f32, bf16 or f16
  TensorView delta;         ///< [rows, width] same type, or none
  TensorView residual_out;  ///< [rows, width] same type; may be residual itself; none without delta
  TensorView weight;        ///< [width] f32
  float epsilon = 1e-5f;
  TensorView y;     ///< [rows, width] same type
  TensorView rrms;  ///< [rows] f32, 1 / RMS
};

/// dx = gradient through the norm + dresidual (the gradient of the residual, if given).
struct RmsNormBackwardArgs {
  TensorView dy;         ///< [rows, width]
  TensorView x;          ///< [rows, width] residual_out of the forward pass
  TensorView weight;     ///< [width] f32
  TensorView rrms;       ///< [rows] f32
  TensorView dresidual;  ///< [rows, width], or none
  TensorView dx;         ///< [rows, width]; may be dresidual itself
  TensorView dweight;    ///< [width] f32, added to; or none
};

/// Deterministic for any number of threads.
WEFT_DEVICE_OP(RmsNormForward, RmsNormForwardArgs)
WEFT_DEVICE_OP(RmsNormBackward, RmsNormBackwardArgs)

}  // namespace weft::kernels
