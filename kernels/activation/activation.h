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

/// y = max(x, 0)^2 (So et al. 2021, arXiv 2109.08668); "relu2" of Hugging Face. With two_of_four,
/// of each four neighbours the two that belong to the largest x, of equals the first, and 0 for the
/// others (arXiv 2503.16672).
struct SquaredReluForwardArgs {
  TensorView x;  ///< f32, bf16 or f16, contiguous; with two_of_four a multiple of 4 elements
  TensorView y;  ///< same shape and type; may be x
  bool two_of_four = false;
};

/// dx = dy * 2 max(x, 0), and 0 where two_of_four makes y 0; writes y again when asked.
struct SquaredReluBackwardArgs {
  TensorView dy;
  TensorView x;
  TensorView dx;  ///< may be dy
  TensorView y;   ///< or none
  bool two_of_four = false;
};

/// Other activations of one number.
enum class UnitFunction : uint8_t {
  kRelu,  ///< max(x, 0), whose derivative at 0 is 0.
  kSilu,  ///< x / (1 + e^-x) (Elfwing et al. 2017, arXiv 1702.03118); "swish".
};

/// y = function(x).
struct UnitForwardArgs {
  TensorView x;  ///< f32, bf16 or f16, contiguous
  TensorView y;  ///< same shape and type; may be x
  UnitFunction function = UnitFunction::kRelu;
};

/// dx = dy * function'(x); writes y again when asked.
struct UnitBackwardArgs {
  TensorView dy;
  TensorView x;
  TensorView dx;  ///< may be dy
  TensorView y;   ///< or none
  UnitFunction function = UnitFunction::kRelu;
};

WEFT_DEVICE_OP(GeluForward, GeluForwardArgs)
WEFT_DEVICE_OP(GeluBackward, GeluBackwardArgs)
WEFT_DEVICE_OP(TanhForward, TanhForwardArgs)
WEFT_DEVICE_OP(TanhBackward, TanhBackwardArgs)
WEFT_DEVICE_OP(SquaredReluForward, SquaredReluForwardArgs)
WEFT_DEVICE_OP(SquaredReluBackward, SquaredReluBackwardArgs)
WEFT_DEVICE_OP(UnitForward, UnitForwardArgs)
WEFT_DEVICE_OP(UnitBackward, UnitBackwardArgs)

}  // namespace weft::kernels
