#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y = factor a b, element by element.
struct HadamardArgs {
  TensorView a;  ///< f32, contiguous
  TensorView b;  ///< the same shape and type, contiguous
  TensorView y;  ///< likewise; may be a or b
  float factor = 1;
};

/// kInvalid where shapes or types differ.
WEFT_DEVICE_OP(Hadamard, HadamardArgs)

}  // namespace weft::kernels
