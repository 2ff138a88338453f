#pragma once

// Rows of a matrix in registers: some warps of a block hold one row, and sum over it.

#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Elements of a row that a thread holds, and most threads of such a block.
inline constexpr int kRowElements = 32;
inline constexpr int kRowThreads = 512;
inline constexpr int64_t kMostRowWidth = int64_t{kRowElements} * kRowThreads;

/// How a block partitions rows: `warps` of it for each of `groups` rows at a time.
struct RowShape {
  int warps;
  int groups;
  unsigned threads() const { return static_cast<unsigned>(warps * groups * kWarp); }
};

/// For a width of at most kMostRowWidth.
inline RowShape RowShapeOf(int64_t width) {
  const int warps = std::max(1, static_cast<int>(CeilDiv(width, int64_t{kRowElements} * kWarp)));
  return {warps, std::max(1, kBlockThreads / (warps * kWarp))};
}

/// A thread's part in its row.
struct RowGroup {
  int warps;    ///< Of the row.
  int threads;  ///< Likewise.
  int groups;   ///< Rows of the block.
  int index;    ///< Of the row in the block.
  int thread;   ///< Of this one in the row.
  int turn = 0;

  __device__ explicit RowGroup(int row_warps)
      : warps(row_warps),
        threads(row_warps * kWarp),
        groups(static_cast<int>(blockDim.x) / threads),
        index(static_cast<int>(threadIdx.x) / threads),
        thread(static_cast<int>(threadIdx.x) % threads) {}

  /// Replaces each value by its sum over the row's threads, in a fixed order. All threads of the
  /// block call it together.
  template <int kValues>
  __device__ void Sum(float (&values)[kValues]) {
#pragma unroll
    for (int k = 0; k < kValues; ++k) values[k] = WarpSum(values[k]);
    if (warps == 1) return;
    // Two buffers in turn: who writes one again has passed the barrier between, after which nobody
    // reads it any more.
    WEFT_SHARED(sums, float[2][kValues][kRowThreads / kWarp]);
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < kValues; ++k) sums[turn][k][threadIdx.x / kWarp] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      values[k] = 0;
      for (int w = 0; w < warps; ++w) values[k] += sums[turn][k][index * warps + w];
    }
    turn ^= 1;
  }
};

}  // namespace weft::kernels::cuda
