#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y = x * scale + shift, with one factor and one term for each column or for all of them.
struct AffineForwardArgs {
  TensorView x;      ///< [rows, width] f32, bf16 or f16
  TensorView scale;  ///< [width] or [1] f32, or none
  TensorView shift;  ///< [width] or [1] f32, or none
  TensorView y;      ///< [rows, width] same type; may be x
};

/// dx = dy * scale, dscale += sum of dy * x and dshift += sum of dy, over rows, and for [1] over
/// columns too.
struct AffineBackwardArgs {
  TensorView dy;      ///< [rows, width]
  TensorView x;       ///< [rows, width] of the forward pass; needed for dscale only
  TensorView scale;   ///< As in the forward pass.
  TensorView dx;      ///< [rows, width], or none; may be dy
  TensorView dscale;  ///< [width] or [1] f32, added to; or none
  TensorView dshift;  ///< [width] or [1] f32, added to; or none
};

/// Deterministic for any number of threads. Tensors are contiguous.
WEFT_DEVICE_OP(AffineForward, AffineForwardArgs)
WEFT_DEVICE_OP(AffineBackward, AffineBackwardArgs)

}  // namespace weft::kernels
