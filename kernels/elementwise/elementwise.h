#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y = x, converting between f32 and a narrower float type (round to nearest even).
struct CastArgs {
  TensorView x;
  TensorView y;  ///< same shape
};

/// y = a + b, computed in f32.
struct AddArgs {
  TensorView a;
  TensorView b;
  TensorView y;  ///< same shape and type; may be a or b
};

/// x = value; f32, bf16, f16 or i32.
struct FillArgs {
  TensorView x;
  float value = 0;
};

/// x *= factor; f32, bf16 or f16.
struct ScaleArgs {
  TensorView x;
  float factor = 1;
};

/// y = keep y + factor x, computed in f32. y is not read when keep is 0.
struct AddScaledArgs {
  TensorView x;
  TensorView y;  ///< f32, same shape
  float factor = 1;
  float keep = 1;
};

/// y += factor sign(x), with sign(0) = 0: the gradient of a sum of magnitudes.
struct AddSignArgs {
  TensorView x;  ///< f32
  TensorView y;  ///< f32, same shape; not x
  float factor = 1;
};

/// x[i] = 0 where mask[i] is 0, whatever it was; the other elements stay as they are.
struct ApplyMaskArgs {
  TensorView x;     ///< f32, bf16 or f16
  TensorView mask;  ///< u8, same shape
};

/// All seven: tensors are contiguous; kInvalid otherwise.
WEFT_DEVICE_OP(Cast, CastArgs)
WEFT_DEVICE_OP(Add, AddArgs)
WEFT_DEVICE_OP(Fill, FillArgs)
WEFT_DEVICE_OP(Scale, ScaleArgs)
WEFT_DEVICE_OP(AddScaled, AddScaledArgs)
WEFT_DEVICE_OP(AddSign, AddSignArgs)
WEFT_DEVICE_OP(ApplyMask, ApplyMaskArgs)

}  // namespace weft::kernels
