#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// One term of a sum of products: `x`, some columns of a matrix, times `panel` [size, size].
struct BlockTerm {
  const float* x;
  const float* panel;
};

/// Products with blocks of side `size`, a multiple of 16, for matrices whose rows may be strided.
template <class T>
struct BlockSparseLoops {
  /// to [rows, size] = from, contiguous.
  void (*widen)(const T* from, int64_t stride, int64_t rows, int64_t size, float* to);
  /// y [rows, size] = the sum of terms x [rows, size] panel, added to `bias` [size], to what is in
  /// y with `accumulate`, or to nothing.
  void (*multiply)(const BlockTerm* terms, int64_t count, int64_t x_stride, T* y, int64_t y_stride,
                   int64_t rows, int64_t size, const float* bias, bool accumulate);
  /// d [size, size] = aᵀ b, or +=, of contiguous a and b [rows, size].
  void (*outer)(const float* a, const float* b, int64_t rows, int64_t size, float* d,
                bool accumulate);
};
using BlockSparseKernels = FloatTypes<BlockSparseLoops>;

WEFT_ISA_TABLE(BlockSparseKernels)

}  // namespace weft::kernels::cpu
