#pragma once

#include "kernels/block_sparse/block_pattern.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// y = x Bᵀ + bias, or y += x Bᵀ.
struct BlockSparseForwardArgs {
  const BlockPattern* pattern = nullptr;
  TensorView x;          ///< [n, columns * size] f32, bf16 or f16
  TensorView blocks;     ///< [count * size, size] f32 or bf16
  TensorView bias = {};  ///< [rows * size] f32, or none; not with `accumulate`
  TensorView y;          ///< [n, rows * size], the type of x
  bool accumulate = false;
};

/// dx = dy B, or dx += dy B.
struct BlockSparseBackwardInputArgs {
  const BlockPattern* pattern = nullptr;
  TensorView dy;      ///< [n, rows * size] f32, bf16 or f16
  TensorView blocks;  ///< [count * size, size] f32 or bf16
  TensorView dx;      ///< [n, columns * size], the type of dy
  bool accumulate = false;
};

/// dB += dyᵀ x, or =, where B has blocks.
struct BlockSparseBackwardWeightArgs {
  const BlockPattern* pattern = nullptr;
  TensorView x;        ///< [n, columns * size] f32, bf16 or f16
  TensorView dy;       ///< [n, rows * size], the type of x
  TensorView dblocks;  ///< [count * size, size] f32, contiguous
  bool accumulate = true;
};

/// All three multiply by the blocks of a block-sparse matrix B [rows * size, columns * size]. Sums
/// are in f32, of blocks rounded to the type of x; the result is rounded once, after what was there
/// is added. Rows of x, y, dx and dy may be strided. kInvalid where sizes do not fit, or the
/// pattern is not on the stream's device. Deterministic, for any number of threads.
WEFT_DEVICE_OP(BlockSparseForward, BlockSparseForwardArgs)
WEFT_DEVICE_OP(BlockSparseBackwardInput, BlockSparseBackwardInputArgs)
WEFT_DEVICE_OP(BlockSparseBackwardWeight, BlockSparseBackwardWeightArgs)

}  // namespace weft::kernels
