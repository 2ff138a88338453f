#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y[r][j][i][c] = x[r][i][j][c]: a row of x is `outer` times `inner` blocks of columns, and one of
/// y `inner` times `outer`.
struct SwapBlocksArgs {
  TensorView x;  ///< [n, outer * inner * width] f32, bf16 or f16, contiguous
  TensorView y;  ///< the same shape and type, contiguous; not x
  int64_t outer = 1;
  int64_t inner = 1;
};

/// kInvalid where the sizes do not fit.
WEFT_DEVICE_OP(SwapBlocks, SwapBlocksArgs)

}  // namespace weft::kernels
