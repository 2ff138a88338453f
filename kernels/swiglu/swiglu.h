#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// What a gate goes through.
enum class GateFunction : uint8_t {
  kSilu,     ///< x / (1 + e^-x): SwiGLU.
  kGelu,     ///< GELU in its tanh form (kernels/activation): GEGLU of T5 v1.1 and Gemma.
  kErfGelu,  ///< The exact GELU: GEGLU as it was published.
};

/// y = function(gate) * up (Shazeer 2020, arXiv 2002.05202). Rows of all matrices may be strided,
/// so gate and up may be columns of one.
struct SwiGluForwardArgs {
  TensorView gate;  ///< [rows, width] f32, bf16 or f16
  TensorView up;    ///< [rows, width] same type
  TensorView y;     ///< [rows, width] same type
  GateFunction function = GateFunction::kSilu;
};

/// Gradients of both factors; writes y = function(gate) * up again when asked, so that the forward
/// result need not be kept.
struct SwiGluBackwardArgs {
  TensorView dy;
  TensorView gate;
  TensorView up;
  TensorView dgate;  ///< may be gate or dy
  TensorView dup;    ///< may be up
  TensorView y;      ///< or none; may be dy
  GateFunction function = GateFunction::kSilu;
};

WEFT_DEVICE_OP(SwiGluForward, SwiGluForwardArgs)
WEFT_DEVICE_OP(SwiGluBackward, SwiGluBackwardArgs)

}  // namespace weft::kernels
