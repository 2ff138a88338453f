#pragma once

// Tiles of 16-bit elements as ptx::CopyTile brings them to shared memory, and the products of
// warpgroups with them (sm_90a).

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/swizzled_tile.h"
#include "kernels/cuda/tensor_map.h"

namespace weft::kernels::cuda {

inline constexpr int kWarpgroup = 4 * kWarp;

/// The warpgroup of the calling thread. The first lane gives it, so that the compiler knows that
/// all lanes have the same one, and computes descriptors once a warp.
__device__ __forceinline__ int WarpgroupIndex() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// The launch's dynamic shared memory from the first multiple of 1024 bytes on, where tiles begin;
/// the launch asks for kTileAlignment more for it.
inline constexpr int kTileAlignment = 1024;
__device__ __forceinline__ unsigned char* AlignedShared() {
  auto* at = DynamicShared<unsigned char>();
  return at + (kTileAlignment - ptx::SharedAddress(at) % kTileAlignment) % kTileAlignment;
}

/// A matrix in rows of kRowBytes, 128 or 64, whose pieces of 16 change places by the row's number
/// (swizzle of as many bytes), eight rows after eight, for ptx::MultiplyAddAsync: PTX ISA, "Matrix
/// Descriptor Format". For an operand by its columns `panel_bytes` is the way from 64 columns to
/// the next 64; for one by its rows, whose depth lies in the row, it has no meaning. `shared` is
/// aligned to 1024 bytes.
template <int kRowBytes>
__device__ __forceinline__ uint64_t MatrixDescriptor(const void* shared, int panel_bytes) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  constexpr uint64_t kEightRows = 8 * kRowBytes / 16, kSwizzle = 128 / kRowBytes;
  return uint64_t{(ptx::SharedAddress(shared) & 0x3ffffu) / 16} |
         static_cast<uint64_t>(panel_bytes / 16) << 16 | kEightRows << 32 | kSwizzle << 62;
}

/// kRows rows of kColumns elements, in panels of kBox columns (those of the tensor map's boxes)
/// that lie one after another.
template <int kRows, int kColumns, int kBox = kBoxColumns>
struct PanelTile {
  static constexpr int kRowBytes = kBox * 2;
  static constexpr int kPanels = kColumns / kBox;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static_assert(kColumns % kBox == 0 && kRows % 8 == 0);

  unsigned char* at;  ///< Aligned to kTileAlignment.

  /// Starts copying rows of a head from `token` on, kBytes for the barrier. By one thread.
  __device__ __forceinline__ void Copy(const CUtensorMap& map, int head, int token,
                                       ptx::PhaseBarrier* barrier) const {
    // A copying warp has few registers.
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::CopyTile(at + panel * kPanelBytes, &map, panel * kBox, head, token, barrier);
    }
  }

  /// Zeros in rows from `row` on, by `threads` threads. Products may meet them after their barrier.
  __device__ __forceinline__ void ClearRows(int row, int thread, int threads) const {
    constexpr int kPieces = kRowBytes / 16;
    for (int i = thread; i < (kRows - row) * kPieces; i += threads) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::Store16(at + panel * kPanelBytes + row * kRowBytes + i * 16, uint4{0, 0, 0, 0});
      }
    }
    ptx::FenceAsyncProxy();
  }

  /// An operand by its rows, from `row` on (a multiple of 8), at a depth that is a multiple of 16.
  __device__ __forceinline__ uint64_t ByRows(int row, int depth) const {
    const int offset = depth / kBox * kPanelBytes + row * kRowBytes + depth % kBox * 2;
    return MatrixDescriptor<kRowBytes>(at, 16) + static_cast<uint64_t>(offset / 16);
  }
  /// The right operand by its columns, from `column` on (a multiple of kBox), whose depth
  /// are the rows from `row` on (a multiple of 8).
  __device__ __forceinline__ uint64_t ByColumns(int row, int column) const {
    const int offset = column / kBox * kPanelBytes + row * kRowBytes;
    return MatrixDescriptor<kRowBytes>(at, kPanelBytes) + static_cast<uint64_t>(offset / 16);
  }
};

/// Starts sums = A B^T for rows [row, row + 64) of the tile A and all rows of the tile B.
template <class T, int kN, int kRowsA, int kRowsB, int kColumns>
__device__ __forceinline__ void StartByRows(Accumulators<1, kN>& sums,
                                            const PanelTile<kRowsA, kColumns>& a, int row,
                                            const PanelTile<kRowsB, kColumns>& b) {
  static_assert(8 * kN == kRowsB);
#pragma unroll
  for (int depth = 0; depth < kColumns; depth += 16) {
    ptx::MultiplyAddAsync<T, kRowsB>(sums[0], a.ByRows(row, depth), b.ByRows(0, depth), depth > 0);
  }
}

/// Starts sums += A B for the tile B; a sum is a warpgroup's [64, kColumns].
template <class T, int kK, int kColumns>
__device__ __forceinline__ void StartByColumns(Accumulators<1, kColumns / 8>& sums,
                                               const LeftFragments<1, kK>& a,
                                               const PanelTile<16 * kK, kColumns>& b) {
  constexpr int kPart = kColumns < 128 ? kColumns : 128;
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int column = 0; column < kColumns; column += kPart) {
      auto& part = reinterpret_cast<float(&)[kPart / 8][4]>(sums[0][column / 8]);
      ptx::MultiplyAddAsync<T, kPart>(part, a[0][k], b.ByColumns(16 * k, column), true);
    }
  }
}

/// Words of four lanes whose numbers differ in the last two bits, as the rows of a square: its
/// columns instead.
__device__ __forceinline__ void TransposeFour(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? words[i] : words[i + bit], bit);
      words[i] = upper ? got : words[i];
      words[i + bit] = upper ? words[i + bit] : got;
    }
  }
}

/// Writes a warp's 16 rows of sums, rounded to T, to rows of `to` that are `stride` elements apart:
/// the first `rows` of them, which may be negative, and of those the first `columns` columns.
template <class T, int kN>
__device__ __forceinline__ void StoreSums(T* to, int64_t stride, int rows, int columns,
                                          const Accumulators<1, kN>& sums) {
  static_assert(kN % 4 == 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = AccumulatorRow(2 * half);
    T* at = to + row * stride;
#pragma unroll
    for (int n = 0; n < kN; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = Pack<T>(sums[0][n + i][2 * half], sums[0][n + i][2 * half + 1]);
      }
      TransposeFour(words);
      const int column = 8 * (n + static_cast<int>(threadIdx.x) % 4);
      if (row < rows && column < columns) {
        ptx::Store16(at + column, uint4{words[0], words[1], words[2], words[3]});
      }
    }
  }
}

}  // namespace weft::kernels::cuda
