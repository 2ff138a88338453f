#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Layer norms and RMS norms of rows whose columns count by a mask of numbers from 0 to 1 (masked
/// layer normalisation, Yao et al. 2024, arXiv 2305.02869). With c the mask and C its sum:
///   residual_out = residual + delta (when delta is given), x = residual_out,
///   mean = sum of c x / C (RMS: 0), variance = sum of c (x - mean)^2 / C,
///   y = c ((x - mean) / sqrt(variance + epsilon) * weight + bias (RMS: 0)).
/// Statistics are fp32. With a mask of ones it is kernels/layer_norm or kernels/rms_norm, and
/// columns whose mask is 0 change no other ones.
struct MaskedNormForwardArgs {
  TensorView residual;      ///< [rows, width] f32, bf16 or f16
  TensorView delta;         ///< [rows, width] same type, or none
  TensorView residual_out;  ///< [rows, width] same type; may be residual itself; none without delta
  TensorView weight;        ///< [width] f32
  TensorView bias;          ///< [width] f32; none: RMS
  TensorView mask;          ///< [width] f32, from 0 to 1, not all 0
  float epsilon = 1e-5f;
  TensorView y;      ///< [rows, width] same type
  TensorView mean;   ///< [rows] f32; none for RMS
  TensorView scale;  ///< [rows] f32, 1 / sqrt(variance + epsilon)
};

/// dx = gradient through the norm + dresidual (the gradient of the residual, if given).
struct MaskedNormBackwardArgs {
  TensorView dy;         ///< [rows, width]
  TensorView x;          ///< [rows, width] residual_out of the forward pass
  TensorView weight;     ///< [width] f32
  TensorView mask;       ///< [width] f32
  TensorView mean;       ///< [rows] f32; none: RMS
  TensorView scale;      ///< [rows] f32
  TensorView dresidual;  ///< [rows, width], or none
  TensorView dx;         ///< [rows, width]; may be dresidual itself
  TensorView dweight;    ///< [width] f32, added to; or none
  TensorView dbias;      ///< [width] f32, added to; or none
};

/// Deterministic for any number of threads.
WEFT_DEVICE_OP(MaskedNormForward, MaskedNormForwardArgs)
WEFT_DEVICE_OP(MaskedNormBackward, MaskedNormBackwardArgs)

}  // namespace weft::kernels
