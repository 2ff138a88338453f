#pragma once

// Tiles of 16-bit elements in shared memory, and their products on the tensor cores: each warp
// holds some rows of a result in registers.

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Rows of kColumns elements. The pieces of 16 bytes of a row change places with each other by the
/// row's number, so that the eight rows of a matrix that is loaded, and the eight rows of a column
/// that is stored, lie in different banks.
template <int kColumns>
struct SwizzledTile {
  static constexpr int kPieces = kColumns / 8;
  static constexpr int kMask = kPieces % 8 == 0 ? 7 : 3;  ///< Bits of a piece's number that change.
  static_assert(kColumns % 32 == 0);

  unsigned char* at;  ///< Aligned to 128 bytes.

  static constexpr int Bytes(int rows) { return rows * kColumns * 2; }

  /// Where `piece` of `row` lies, in bytes from `at`.
  static constexpr int Offset(int row, int piece) {
    // Rows of an odd number of 64 bytes already differ from the next by half of the banks.
    const int swizzle = kPieces % 8 == 0 ? row & kMask : row >> 1 & kMask;
    return (row * kPieces + (piece ^ swizzle)) * 16;
  }
  __device__ __forceinline__ unsigned char* Piece(int row, int piece) const {
    return at + Offset(row, piece);
  }
  /// Piece(row + r, piece | p) for offset = Offset(r, p), when row is a multiple of 8 and `piece`
  /// has no bit of p: in few instructions when both are constant.
  __device__ __forceinline__ unsigned char* PieceFrom(int offset, int row, int piece) const {
    return at + (offset ^ (piece & kMask) * 16) + (row * kPieces + (piece & ~kMask)) * 16;
  }

  /// Whether the eight rows of each column of pieces fill all 32 banks once.
  static constexpr bool WithoutBankConflicts() {
    for (int piece = 0; piece < kPieces; ++piece) {
      int groups = 0;
      for (int row = 0; row < 8; ++row) groups |= 1 << Offset(row, piece) / 16 % 8;
      if (groups != 0xff) return false;
    }
    return true;
  }

  /// Starts copying kRows rows, `stride` elements apart, by all kThreads threads of the block.
  /// Rows from `rows` on, which may be negative, and columns from `columns` on become zeros.
  template <int kRows, int kThreads, class T>
  __device__ __forceinline__ void CopyAsync(const T* from, int64_t stride, int rows,
                                            int columns) const {
    constexpr int kCopies = kRows * kPieces;
    static_assert(kCopies % kThreads == 0 && sizeof(T) == 2);
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kThreads % kPieces == 0) {
      // A thread keeps its columns.
      constexpr int kStep = kThreads / kPieces;
      const int first = thread / kPieces, piece = thread % kPieces;
      const bool inside = piece * 8 < columns;
      const T* row = from + first * stride + piece * 8;
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i) {
        ptx::CopyAsync16(Piece(first + i * kStep, piece), row, inside && first + i * kStep < rows);
        row += kStep * stride;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCopies / kThreads; ++i) {
        const int index = thread + i * kThreads, row = index / kPieces, piece = index % kPieces;
        ptx::CopyAsync16(Piece(row, piece), from + row * stride + piece * 8,
                         row < rows && piece * 8 < columns);
      }
    }
  }

  /// `a` of ptx::MultiplyAdd: rows [row, row + 16) of columns [column, column + 16). Both are
  /// multiples of 16, as in the next two.
  __device__ __forceinline__ void LoadLeft(uint32_t (&a)[4], int row, int column) const {
    static_assert(WithoutBankConflicts());
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ptx::LoadMatrices(a, PieceFrom(Offset(lane % 16, lane / 16), row, column / 8));
  }

  /// `b` twice, of the transposed tile: columns [column, column + 16) of it in the depth, rows
  /// [row, row + 8) and the next eight.
  __device__ __forceinline__ void LoadRightOfRows(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ptx::LoadMatrices(b,
                      PieceFrom(Offset(lane / 16 * 8 + lane % 8, lane / 8 % 2), row, column / 8));
  }

  /// `b` twice: rows [row, row + 16) in the depth, columns [column, column + 8) and the next eight.
  __device__ __forceinline__ void LoadRight(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ptx::LoadMatricesTransposed(b, PieceFrom(Offset(lane % 16, lane / 16), row, column / 8));
  }

  /// Copies kRows rows from `row` on, which this warp alone has written, to `to`, whose rows are
  /// `stride` elements apart: the first `rows` of them, and of those the first `columns` columns.
  template <int kRows, class T>
  __device__ __forceinline__ void CopyOut(T* to, int64_t stride, int row, int rows,
                                          int columns) const {
    static_assert(kRows * kPieces % kWarp == 0 && sizeof(T) == 2);
#pragma unroll
    for (int i = 0; i < kRows * kPieces / kWarp; ++i) {
      const int index = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      const int r = index / kPieces, piece = index % kPieces;
      if (r < rows && piece * 8 < columns) {
        ptx::Store16(to + r * stride + piece * 8, ptx::Load16(Piece(row + r, piece)));
      }
    }
  }
};

/// Part of a matrix in a warp's registers, sums[m][n] being rows [16 m, 16 m + 16) of columns
/// [8 n, 8 n + 8) as ptx::MultiplyAdd has them in c. Element i is in row AccumulatorRow(i) + 16 m,
/// column AccumulatorColumn(i) + 8 n.
template <int kM, int kN>
using Accumulators = float[kM][kN][4];

__device__ __forceinline__ int AccumulatorRow(int i, int lane) {
  return lane / 4 + 8 * (i / 2);
}
__device__ __forceinline__ int AccumulatorColumn(int i, int lane) {
  return 2 * (lane % 4) + i % 2;
}
__device__ __forceinline__ int AccumulatorRow(int i) {
  return AccumulatorRow(i, static_cast<int>(threadIdx.x) % kWarp);
}
__device__ __forceinline__ int AccumulatorColumn(int i) {
  return AccumulatorColumn(i, static_cast<int>(threadIdx.x) % kWarp);
}

/// left[m][k]: rows [16 m, 16 m + 16) of columns [16 k, 16 k + 16) of a left operand.
template <int kM, int kK>
using LeftFragments = uint32_t[kM][kK][4];

/// Two neighbouring products with what LoadRight or LoadRightOfRows gave.
template <class T>
__device__ __forceinline__ void MultiplyAddTwo(float (&first)[4], float (&second)[4],
                                               const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t b_first[2] = {b[0], b[1]}, b_second[2] = {b[2], b[3]};
  ptx::MultiplyAdd<T>(first, a, b_first);
  ptx::MultiplyAdd<T>(second, a, b_second);
}

/// sums += A B^T, for rows [row, row + 16 kM) of the tile A and rows [0, 8 kN) of the tile B.
template <class T, int kM, int kN, int kColumns>
__device__ __forceinline__ void MultiplyByRows(Accumulators<kM, kN>& sums,
                                               const SwizzledTile<kColumns>& a, int row,
                                               const SwizzledTile<kColumns>& b) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int k = 0; k < kColumns; k += 16) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) a.LoadLeft(left[m], row + 16 * m, k);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      b.LoadRightOfRows(right, 8 * n, k);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MultiplyAddTwo<T>(sums[m][n], sums[m][n + 1], left[m], right);
      }
    }
  }
}

/// sums += A B, for rows [0, 16 kK) of columns [column, column + 8 kN) of the tile B.
template <class T, int kM, int kK, int kN, int kColumns>
__device__ __forceinline__ void Multiply(Accumulators<kM, kN>& sums, const LeftFragments<kM, kK>& a,
                                         const SwizzledTile<kColumns>& b, int column) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      b.LoadRight(right, 16 * k, column + 8 * n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MultiplyAddTwo<T>(sums[m][n], sums[m][n + 1], a[m][k], right);
      }
    }
  }
}

/// A product, rounded to T, as the left operand of another: a lane already has the elements.
template <class T, int kM, int kK, int kN>
__device__ __forceinline__ void RoundToLeft(LeftFragments<kM, kK>& left,
                                            const Accumulators<kM, kN>& sums) {
  static_assert(kN == 2 * kK);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kK; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = sums[m][2 * k + i / 2];
        left[m][k][i] = Pack<T>(from[2 * (i % 2)], from[2 * (i % 2) + 1]);
      }
    }
  }
}

/// Writes sums, rounded to T, to rows from `row` on of the tile, which this warp alone uses.
template <class T, int kM, int kN, int kColumns>
__device__ __forceinline__ void StoreRows(const SwizzledTile<kColumns>& tile, int row,
                                          const Accumulators<kM, kN>& sums) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int offset = SwizzledTile<kColumns>::Offset(AccumulatorRow(0), 0);
        ptx::Store4(tile.PieceFrom(offset, row + 16 * m + 4 * i, n) + 2 * AccumulatorColumn(0),
                    Pack<T>(sums[m][n][i], sums[m][n][i + 1]));
      }
    }
  }
  __syncwarp();
}

}  // namespace weft::kernels::cuda
