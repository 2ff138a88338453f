#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// Numbers as symmetric quantised values of 8 bits, with a scale for each group of successive
/// columns of a row (block-wise absolute maximum: Dettmers et al. 2022, arXiv 2110.02861 and
/// 2208.07339):
///   scale = largest |x| of the group / 127
///   q = x * (127 / largest |x|), rounded to the nearest integer, half to even; -127 to 127
/// A group whose largest magnitude is below 2^-100 has quantised values and a scale of 0. A group
/// with a NaN or an infinity has quantised values of 0 and a NaN as scale. Every back end gives the
/// same bits.
struct QuantizeInt8Args {
  TensorView x;       ///< [rows, columns] f32, bf16 or f16; rows may be strided
  TensorView q;       ///< [rows, columns] u8 in two's complement, contiguous
  TensorView scale;   ///< [rows, groups] f32, contiguous; groups = columns / group, rounded up
  int64_t group = 0;  ///< Columns of a group, at least 1; the last of a row may have fewer.
};

/// y = q * scale, rounded to the type of y.
struct DequantizeInt8Args {
  TensorView q;
  TensorView scale;
  TensorView y;  ///< [rows, columns] f32, bf16 or f16; rows may be strided
  int64_t group = 0;
};

WEFT_DEVICE_OP(QuantizeInt8, QuantizeInt8Args)
WEFT_DEVICE_OP(DequantizeInt8, DequantizeInt8Args)

}  // namespace weft::kernels
