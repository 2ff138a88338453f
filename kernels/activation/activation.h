#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y = GELU(x), tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel
/// 2016, arXiv 1606.08415; "gelu_new" of Hugging Face).
struct GeluForwardArgs {
  TensorView x;  ///< f32 or bf16, contiguous
  TensorView y;  ///< same shape and type; may be x
};

/// dx = dy * GELU'(x); writes y = GELU(x) again when asked, so that the forward result need not be
/// kept.
struct GeluBackwardArgs {
  TensorView dy;
  TensorView x;
  TensorView dx;  ///< may be dy
  TensorView y;   ///< or none
};

WEFT_DEVICE_OP(GeluForward, GeluForwardArgs)
WEFT_DEVICE_OP(GeluBackward, GeluBackwardArgs)

}  // namespace weft::kernels
