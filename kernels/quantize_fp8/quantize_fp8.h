#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// A scaled cast to 8 bits, with the transposed copy and the largest magnitude, in one pass:
///   q = ToFloat8(x scale), the product rounded to f32 first
///   transposed = qᵀ, followed by zeros up to its width
///   amax = max(amax, largest |x|)
/// Bit for bit the same on every back end (common/float8.h: saturating, NaN is 0x7f). A NaN in x
/// makes amax a NaN, an infinity makes it infinity.
struct QuantizeFp8Args {
  TensorView x;                ///< [rows, columns] f32 or bf16; rows may be strided
  TensorView scale = {};       ///< [1] f32; none when neither q nor transposed is wanted
  TensorView q = {};           ///< [rows, columns] E4M3 or E5M2, contiguous; or none
  TensorView transposed = {};  ///< [columns, at least rows], of q's type, contiguous; or none
  TensorView amax = {};        ///< [1] f32, positive, 0 or NaN; or none
};

/// The next scales of n tensors from the largest magnitudes of the steps so far (delayed scaling),
/// or with a history of one step from those alone:
///   history[i, slot] = amax[i], or 0 where that is not finite; amax[i] = 0
///   largest over history[i] > 0: scale[i] = largest_code[i] / it / 2^margin, no more than 2^126
///                                and no less than 2^-126; otherwise scale[i] stays
///   inverse_scale[i] = 1 / scale[i]
/// Bit for bit the same on every back end.
struct UpdateFp8ScalesArgs {
  TensorView amax;           ///< [n] f32, not negative
  TensorView history;        ///< [n, steps] f32
  TensorView largest_code;   ///< [n] f32: the largest number of the tensor's type
  TensorView scale;          ///< [n] f32
  TensorView inverse_scale;  ///< [n] f32
  int64_t slot = 0;          ///< Of the history, to be overwritten.
  int margin = 0;            ///< 0 to 32: powers of two left free above the largest.
};

WEFT_DEVICE_OP(QuantizeFp8, QuantizeFp8Args)
WEFT_DEVICE_OP(UpdateFp8Scales, UpdateFp8ScalesArgs)

}  // namespace weft::kernels
