#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// The 2:4 mask of W [rows, columns] that keeps the largest sum of magnitudes and is transposable:
/// in each block of 4 x 4 every row and every column keeps two, so that W and its transpose are
/// both 2:4 sparse (Hubara et al. 2021, arXiv 2102.08124). There are 90 such blocks, and each is
/// tried (the convolution of Hu et al. 2024, arXiv 2404.01847, section 4.2). Of equals the one
/// whose bits are the smallest number is taken, so that ranks with the same weights have the same
/// mask.
///
/// A mask is [rows / 4, columns / 4] u16. Bit 4 r + c of element (i, j) keeps W[4 i + r, 4 j + c].
struct TransposableMaskArgs {
  TensorView weight;      ///< [rows, columns] f32 or bf16, both multiples of 4; rows may be strided
  TensorView mask;        ///< [rows / 4, columns / 4] u16, contiguous; overwritten
  TensorView flips = {};  ///< [rows / 4] i32: bits of each row of the mask that changed; or none
};

/// The 2:4 mask that keeps the two largest magnitudes of each four neighbours in a row, of equals
/// the first. In the layout of TransposableMask.
struct RowMaskArgs {
  TensorView weight;      ///< As above.
  TensorView mask;        ///< As above.
  TensorView flips = {};  ///< As above.
};

/// y = scale s(W), where s takes the third largest magnitude of each four neighbours in a row off
/// the two largest, and makes the others 0: two of four that change continuously with W (S-STE; Hu
/// et al. 2024, arXiv 2409.09099). Where magnitudes are equal y may have fewer.
struct SoftThresholdArgs {
  TensorView weight;  ///< As above.
  TensorView y;       ///< [rows, columns] f32; rows may be strided
  float scale = 1;
};

/// kInvalid when arguments do not fit. A NaN counts as 0. The same bits on every instruction set
/// and device.
WEFT_DEVICE_OP(TransposableMask, TransposableMaskArgs)
WEFT_DEVICE_OP(RowMask, RowMaskArgs)
WEFT_DEVICE_OP(SoftThreshold, SoftThresholdArgs)

}  // namespace weft::kernels
