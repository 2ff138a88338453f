#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// A matrix of FP8 numbers that stand for others: element = code x inverse_scale.
struct Fp8Matrix {
  TensorView codes;  ///< E4M3 or E5M2, contiguous, at a multiple of 16 bytes
  /// [1] f32 at a multiple of 16 bytes, read when the stream comes to it.
  TensorView inverse_scale;
};

/// c = a bᵀ + bias, or c += a bᵀ: the three products of a linear layer, both operands with the
/// summed dimension innermost, as tensor cores take them (TN):
///   y = x wᵀ + bias     a = x [rows, in],     b = w [out, in]
///   dx = dy w           a = dy [rows, out],   b = wᵀ [in, out]
///   dw += dyᵀ x         a = dyᵀ [out, rows],  b = xᵀ [in, rows], rows padded with zeros
/// k and n are multiples of 16. One operand may be E5M2, not both.
///
/// Products of FP8 values are exact in f32, and their sums are f32 on a CPU. A device may keep
/// partial sums in fewer bits (Hopper: about 14 in place of 24): those of some columns, and with
/// fast_sums all of them. The sum is multiplied by the two scales, the bias added, and the
/// result rounded once. Deterministic for a fixed number of threads. kInvalid when arguments do not
/// fit; inputs and outputs do not overlap.
struct MatmulFp8Args {
  Fp8Matrix a;              ///< [m, k]
  Fp8Matrix b;              ///< [n, k]
  TensorView bias = {};     ///< [n] bf16, or none; with bf16 c only
  TensorView c;             ///< [m, n] bf16 or f32, contiguous, at a multiple of 16 bytes
  bool accumulate = false;  ///< c += instead of c =; with f32 c only
  bool fast_sums = false;
};

WEFT_DEVICE_OP(MatmulFp8, MatmulFp8Args)

}  // namespace weft::kernels
