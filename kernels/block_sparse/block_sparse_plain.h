#pragma once

// Products with blocks by multiplications in f32: of f32, and of matrices whose rows are not
// aligned to 16 bytes.

#include "kernels/block_sparse/block_sparse_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Rows of a tile. A thread has one column of a unit, and every fourth row.
inline constexpr int kPlainTileRows = 64;
inline constexpr int kPlainStep = kBlockSparseThreads / kUnit;
inline constexpr int kPlainSums = kPlainTileRows / kPlainStep;

template <bool kForward, class T, class Stored>
__global__ void __launch_bounds__(kBlockSparseThreads)
    MultiplyBlocksPlain(BlockProduct<kForward, T, Stored> product) {
  // The padding keeps threads of a warp in different banks.
  WEFT_SHARED(in, float[kPlainTileRows][kUnit + 1]);
  WEFT_SHARED(block, float[kUnit][kUnit + 1]);  // By numbers of the depth.
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kUnit, first = thread / kUnit;
  const int64_t row = int64_t{blockIdx.y} * kPlainTileRows;
  const int rows = RowsLeft(product.rows - row, kPlainTileRows);
  const int steps = product.Steps();
  float sums[kPlainSums] = {};
  for (int step = 0; step < steps; ++step) {
    const int depth = RowsLeft(product.size - product.DepthOf(step), kUnit);
    for (int r = first; r < kPlainTileRows; r += kPlainStep) {
      in[r][column] = r < rows && column < depth
                          ? Widen(*product.in.At(row + r, product.InColumn(step) + column))
                          : 0.0f;
    }
    for (int r = first; r < kUnit; r += kPlainStep) {
      const Stored* const from = product.BlockAt(step, r, column);
      const float value = from != nullptr ? Widen(Narrow<T>(Widen(*from))) : 0.0f;
      (kForward ? block[column][r] : block[r][column]) = value;
    }
    __syncthreads();
    for (int k = 0; k < kUnit; ++k) {
      const float factor = block[k][column];
#pragma unroll
      for (int i = 0; i < kPlainSums; ++i) sums[i] += in[first + i * kPlainStep][k] * factor;
    }
    __syncthreads();
  }
  if (column >= product.Width()) return;
  const int64_t out_column = product.OutColumn() + column;
  const float bias = product.bias != nullptr ? product.bias[out_column] : 0.0f;
#pragma unroll
  for (int i = 0; i < kPlainSums; ++i) {
    const int r = first + i * kPlainStep;
    if (r >= rows) break;
    T* const to = product.out.At(row + r, out_column);
    *to = Narrow<T>(sums[i] + (product.accumulate ? Widen(*to) : bias));
  }
}

/// Rows that are summed at a time. A thread has a row of a unit, and every fourth column.
inline constexpr int kPlainDepth = 32;
inline constexpr int kPlainColumns4 = kUnit / 4;

template <class T>
__global__ void __launch_bounds__(kBlockSparseThreads)
    BlockGradientPlain(BlockGradient<T> gradient) {
  WEFT_SHARED(dy, float[kPlainDepth][kUnit + 1]);
  WEFT_SHARED(x, float[kPlainDepth][kUnit + 1]);
  const int thread = static_cast<int>(threadIdx.x);
  const int s = thread / 4, p = thread % 4;
  const int own = thread % kUnit;
  float sums[kPlainColumns4] = {};
  for (int64_t row = 0; row < gradient.rows; row += kPlainDepth) {
    for (int r = thread / kUnit; r < kPlainDepth; r += kBlockSparseThreads / kUnit) {
      const bool there = row + r < gradient.rows;
      dy[r][own] =
          there && gradient.Row() + own < gradient.size ? Widen(gradient.Dy(row + r)[own]) : 0.0f;
      x[r][own] =
          there && gradient.Column() + own < gradient.size ? Widen(gradient.X(row + r)[own]) : 0.0f;
    }
    __syncthreads();
    for (int r = 0; r < kPlainDepth; ++r) {
      const float factor = dy[r][s];
#pragma unroll
      for (int j = 0; j < kPlainColumns4; ++j) sums[j] += factor * x[r][p + 4 * j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kPlainColumns4; ++j) {
    float* const to = gradient.At(s, p + 4 * j);
    if (to != nullptr) *to = gradient.accumulate ? *to + sums[j] : sums[j];
  }
}

}  // namespace weft::kernels::cuda
