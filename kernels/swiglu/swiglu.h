#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y = silu(gate) * up with silu(x) = x / (1 + e^-x) (Shazeer 2020, arXiv 2002.05202). Rows of all
/// matrices may be strided, so gate and up may be columns of one.
struct SwiGluForwardArgs {
  TensorView gate;  ///< [rows, width] f32, bf16 or f16
  TensorView up;    ///< [rows, width] same type
  TensorView y;     ///< [rows, width] same type
};

/// Gradients of both factors; writes y = silu(gate) * up again when asked, so that the forward
/// result need not be kept.
struct SwiGluBackwardArgs {
  TensorView dy;
  TensorView gate;
  TensorView up;
  TensorView dgate;  ///< may be gate
  TensorView dup;    ///< may be up
  TensorView y;      ///< or none; may be dy
};

WEFT_DEVICE_OP(SwiGluForward, SwiGluForwardArgs)
WEFT_DEVICE_OP(SwiGluBackward, SwiGluBackwardArgs)

}  // namespace weft::kernels
