#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// The forms of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415).
enum class GeluForm : uint8_t {
  kTanh,  ///< 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); "gelu_new" of Hugging Face.
  kErf,   ///< The exact one, x Phi(x) = 0.5 x (1 + erf(x / sqrt(2))); "gelu" of Hugging Face.
};

/// y = GELU(x).
struct GeluForwardArgs {
  TensorView x;  ///< f32 or bf16, contiguous
  TensorView y;  ///< same shape and type; may be x
  GeluForm form = GeluForm::kTanh;
};

/// dx = dy * GELU'(x); writes y = GELU(x) again when asked, so that the forward result need not be
/// kept.
struct GeluBackwardArgs {
  TensorView dy;
  TensorView x;
  TensorView dx;  ///< may be dy
  TensorView y;   ///< or none
  GeluForm form = GeluForm::kTanh;
};

/// y = tanh(x).
struct TanhForwardArgs {
  TensorView x;  ///< f32, bf16 or f16, contiguous
  TensorView y;  ///< same shape and type; may be x
};

/// dx = dy * (1 - y^2), of y = tanh(x).
struct TanhBackwardArgs {
  TensorView dy;
  TensorView y;
  TensorView dx;  ///< may be dy
};

WEFT_DEVICE_OP(GeluForward, GeluForwardArgs)
WEFT_DEVICE_OP(GeluBackward, GeluBackwardArgs)
WEFT_DEVICE_OP(TanhForward, TanhForwardArgs)
WEFT_DEVICE_OP(TanhBackward, TanhBackwardArgs)

}  // namespace weft::kernels
