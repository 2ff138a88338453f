#pragma once

// Products with blocks of bf16 and f16 on the tensor cores. All rows begin at multiples of 16
// bytes.

#include "kernels/block_sparse/block_sparse_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/swizzled_tile.h"

namespace weft::kernels::cuda {

using UnitTile = SwizzledTile<kUnit>;

/// `a` of ptx::MultiplyAdd from the transposed tile: columns [column, column + 16) of it are rows
/// of a, rows [row, row + 16) its depth. Both are multiples of 16.
__device__ __forceinline__ void LoadLeftOfColumns(uint32_t (&a)[4], const UnitTile& tile, int row,
                                                  int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int offset = UnitTile::Offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  ptx::LoadMatricesTransposed(a, tile.PieceFrom(offset, row, column / 8));
}

/// A block of threads computes kRows rows of a unit. Each step multiplies a unit of a block of the
/// matrix; kStages - 1 units are being copied meanwhile. Four warps share the rows.
struct BlockProductTile {
  static constexpr int kRows = 128, kStages = 3;
  static constexpr int kWarpRows = kRows / (kBlockSparseThreads / kWarp);
  static constexpr int kM = kWarpRows / 16, kN = kUnit / 8;
  static constexpr int kStageBytes = UnitTile::Bytes(kRows) + UnitTile::Bytes(kUnit);
};

template <bool kForward, class T, class Stored>
__global__ void __launch_bounds__(kBlockSparseThreads, 4)
    MultiplyBlocks(BlockProduct<kForward, T, Stored> product) {
  using B = BlockProductTile;
  unsigned char* const shared = DynamicShared<unsigned char>();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = thread / kWarp * B::kWarpRows;
  const int64_t row = int64_t{blockIdx.y} * B::kRows;
  const int rows = RowsLeft(product.rows - row, B::kRows);
  const int steps = product.Steps();
  if (steps == 0 && product.accumulate) return;

  const auto in_of = [&](int step) {
    return UnitTile{shared + step % B::kStages * B::kStageBytes};
  };
  const auto block_of = [&](int step) {
    return UnitTile{in_of(step).at + UnitTile::Bytes(B::kRows)};
  };
  const auto fill = [&](int step) {
    if (step < steps) {
      in_of(step).template CopyAsync<B::kRows, kBlockSparseThreads>(
          product.in.At(row, product.InColumn(step)), product.in.stride, rows,
          RowsLeft(product.size - product.DepthOf(step), kUnit));
    }
    ptx::CopyAsyncCommit();
  };
  // A block is rounded on its way through registers: eight numbers of a row for each thread.
  static_assert(kBlockSparseThreads * 8 == kUnit * kUnit);
  const int block_row = thread / UnitTile::kPieces, block_piece = thread % UnitTile::kPieces;
  const auto load_block = [&](int step) {
    Packed<Stored, 8> numbers = {};
    if (step >= steps) return numbers;
    const Stored* const from = product.BlockAt(step, block_row, 8 * block_piece);
    return from != nullptr ? LoadPacked<8>(from) : numbers;
  };
  const auto store_block = [&](int step, const Packed<Stored, 8>& numbers) {
    float wide[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) wide[i] = numbers[i];
    StoreFloats(reinterpret_cast<T*>(block_of(step).Piece(block_row, block_piece)), wide);
  };

  for (int step = 0; step < B::kStages - 1; ++step) {
    fill(step);
    store_block(step, load_block(step));
  }
  Accumulators<B::kM, B::kN> sums = {};
  for (int step = 0; step < steps; ++step) {
    ptx::CopyAsyncWait<B::kStages - 2>();
    // All have the data of this step, and none reads any more what the next ones overwrite.
    __syncthreads();
    fill(step + B::kStages - 1);
    const Packed<Stored, 8> next = load_block(step + B::kStages - 1);
#pragma unroll
    for (int k = 0; k < kUnit; k += 16) {
      uint32_t left[B::kM][4];
#pragma unroll
      for (int m = 0; m < B::kM; ++m) in_of(step).LoadLeft(left[m], warp_row + 16 * m, k);
#pragma unroll
      for (int n = 0; n < B::kN; n += 2) {
        uint32_t right[4];
        if constexpr (kForward) {
          block_of(step).LoadRightOfRows(right, 8 * n, k);
        } else {
          block_of(step).LoadRight(right, k, 8 * n);
        }
#pragma unroll
        for (int m = 0; m < B::kM; ++m) {
          MultiplyAddTwo<T>(sums[m][n], sums[m][n + 1], left[m], right);
        }
      }
    }
    store_block(step + B::kStages - 1, next);
  }
  ptx::CopyAsyncWait<0>();
  __syncthreads();

  const int width = product.Width();
  const int64_t out_column = product.OutColumn();
#pragma unroll
  for (int m = 0; m < B::kM; ++m) {
#pragma unroll
    for (int n = 0; n < B::kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int r = warp_row + 16 * m + AccumulatorRow(i);
        const int c = 8 * n + AccumulatorColumn(i);
        if (r >= rows || c >= width) continue;
        if (product.accumulate) {
          const T* const old = product.out.At(row + r, out_column + c);
          sums[m][n][i] += Widen(old[0]);
          sums[m][n][i + 1] += Widen(old[1]);
        } else if (product.bias != nullptr) {
          sums[m][n][i] += product.bias[out_column + c];
          sums[m][n][i + 1] += product.bias[out_column + c + 1];
        }
      }
    }
  }
  StoreRows<T>(in_of(0), warp_row, sums);
  in_of(0).template CopyOut<B::kWarpRows>(product.out.At(row + warp_row, out_column),
                                          product.out.stride, warp_row, rows - warp_row, width);
}

/// A gradient sums kDepth rows in a step, 16 in each warp, and copies kStages - 1 steps ahead.
struct BlockGradientTile {
  static constexpr int kDepth = 64, kStages = 3, kWarps = kBlockSparseThreads / kWarp;
  static constexpr int kStageBytes = 2 * UnitTile::Bytes(kDepth);
  static constexpr int kSumStride = kUnit + 4;  ///< Rows of sums in different banks.
  static constexpr int kSumBytes = kWarps * kUnit * kSumStride * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
};

template <class T>
__global__ void __launch_bounds__(kBlockSparseThreads, 4)
    SumBlockGradient(BlockGradient<T> gradient) {
  using B = BlockGradientTile;
  unsigned char* const shared = DynamicShared<unsigned char>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const auto steps = static_cast<int>((gradient.rows + B::kDepth - 1) / B::kDepth);
  const auto dy_of = [&](int step) {
    return UnitTile{shared + step % B::kStages * B::kStageBytes};
  };
  const auto x_of = [&](int step) { return UnitTile{dy_of(step).at + UnitTile::Bytes(B::kDepth)}; };
  const auto fill = [&](int step) {
    if (step < steps) {
      const int64_t row = int64_t{step} * B::kDepth;
      const int rows = RowsLeft(gradient.rows - row, B::kDepth);
      dy_of(step).template CopyAsync<B::kDepth, kBlockSparseThreads>(
          gradient.Dy(row), gradient.dy.stride, rows,
          RowsLeft(gradient.size - gradient.Row(), kUnit));
      x_of(step).template CopyAsync<B::kDepth, kBlockSparseThreads>(
          gradient.X(row), gradient.x.stride, rows,
          RowsLeft(gradient.size - gradient.Column(), kUnit));
    }
    ptx::CopyAsyncCommit();
  };

  for (int step = 0; step < B::kStages - 1; ++step) fill(step);
  constexpr int kM = kUnit / 16, kN = kUnit / 8;
  Accumulators<kM, kN> sums = {};
  for (int step = 0; step < steps; ++step) {
    ptx::CopyAsyncWait<B::kStages - 2>();
    __syncthreads();
    fill(step + B::kStages - 1);
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) LoadLeftOfColumns(left[m], dy_of(step), 16 * warp, 16 * m);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      x_of(step).LoadRight(right, 16 * warp, 8 * n);
#pragma unroll
      for (int m = 0; m < kM; ++m) MultiplyAddTwo<T>(sums[m][n], sums[m][n + 1], left[m], right);
    }
  }
  ptx::CopyAsyncWait<0>();
  __syncthreads();

  // The sums of the warps, in their order.
  auto* const of_warps = reinterpret_cast<float*>(shared);
  const auto at = [&](int of_warp, int r, int c) {
    return of_warps + (of_warp * kUnit + r) * B::kSumStride + c;
  };
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *at(warp, 16 * m + AccumulatorRow(i), 8 * n + AccumulatorColumn(i)) = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  const int r = thread / (kUnit / 8), c = thread % (kUnit / 8) * 8;
  float* const to = gradient.At(r, c);
  if (to == nullptr) return;
  float total[8] = {};
  if (gradient.accumulate) LoadFloats(to, total);
  for (int of_warp = 0; of_warp < B::kWarps; ++of_warp) {
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] += at(of_warp, r, c)[i];
  }
  StoreFloats(to, total);
}

}  // namespace weft::kernels::cuda
