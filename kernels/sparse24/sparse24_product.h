#pragma once

// Products of a compressed matrix A and a dense one on the sparse tensor cores.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/swizzled_tile.h"
#include "kernels/sparse24/compressed_matrix.h"

namespace weft::kernels::cuda {

/// A block computes kRows rows of A times kLines columns of the dense matrix, in steps of kDepth
/// columns of A; kStages - 1 steps are in flight. Eight warps share it, two by four.
struct SparseBlock {
  static constexpr int kRows = 128, kLines = 128, kDepth = 64, kStages = 3, kThreads = 256;
  static constexpr int kWarpsAcross = 4;
  static constexpr int kWarpRows = 64, kWarpLines = 32;
  static constexpr int kM = kWarpRows / 16, kN = kWarpLines / 8;
  static constexpr int kMetadataWords = kRows / 16 * kWarp;

  using Values = SwizzledTile<kDepth / 2>;  ///< Two of each four columns of A.
  static constexpr int kDenseBytes = kDepth * kLines * 2;
  static constexpr int kStageBytes = Values::Bytes(kRows) + kDenseBytes + kMetadataWords * 4;
};

/// Fills a tile of kRows rows of `columns` columns from `from` on; rows from `rows` on, which may
/// be negative, and columns from `columns` on become zeros. Asynchronously with kWide: rows then
/// begin at multiples of 16 bytes, and `columns` is a multiple of 8.
template <int kRows, bool kWide, int kColumns, class T>
__device__ __forceinline__ void FillTile(const SwizzledTile<kColumns>& tile, const T* from,
                                         int64_t stride, int rows, int columns) {
  if constexpr (kWide) {
    tile.template CopyAsync<kRows, SparseBlock::kThreads>(from, stride, rows, columns);
  } else {
    constexpr int kPieces = SwizzledTile<kColumns>::kPieces;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += SparseBlock::kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      uint32_t words[4] = {};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int column = 8 * piece + k;
        if (row < rows && column < columns) {
          words[k / 2] |= uint32_t{from[row * stride + column].bits} << (16 * (k % 2));
        }
      }
      ptx::Store16(tile.Piece(row, piece), uint4{words[0], words[1], words[2], words[3]});
    }
  }
}

__device__ __forceinline__ int AtMost(int64_t size, int most) {
  return size < most ? static_cast<int>(size) : most;
}

/// A dense matrix [depth, lines] that is given by its transpose.
template <class T, bool kWide>
struct DenseLines {
  using Element = T;
  using Tile = SwizzledTile<SparseBlock::kDepth>;  // kLines rows
  StridedRows<const T> from;                       ///< [lines, depth]
  int64_t lines, depth;

  __device__ __forceinline__ void Fill(const Tile& tile, int64_t line, int64_t k) const {
    FillTile<SparseBlock::kLines, kWide>(tile, from.At(line, k), from.stride,
                                         AtMost(lines - line, SparseBlock::kLines),
                                         AtMost(depth - k, SparseBlock::kDepth));
  }
  /// `b` of ptx::MultiplyAddSparse: 32 of the depth from k on, of eight lines.
  static __device__ __forceinline__ void Load(uint32_t (&b)[4], const Tile& tile, int line, int k) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ptx::LoadMatrices(b, tile.PieceFrom(Tile::Offset(lane % 8, lane / 8), line, k / 8));
  }
};

/// A dense matrix [depth, lines] as it is.
template <class T, bool kWide>
struct DenseColumns {
  using Element = T;
  using Tile = SwizzledTile<SparseBlock::kLines>;  // kDepth rows
  StridedRows<const T> from;                       ///< [depth, lines]
  int64_t lines, depth;

  __device__ __forceinline__ void Fill(const Tile& tile, int64_t line, int64_t k) const {
    FillTile<SparseBlock::kDepth, kWide>(tile, from.At(k, line), from.stride,
                                         AtMost(depth - k, SparseBlock::kDepth),
                                         AtMost(lines - line, SparseBlock::kLines));
  }
  static __device__ __forceinline__ void Load(uint32_t (&b)[4], const Tile& tile, int line, int k) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ptx::LoadMatricesTransposed(b, tile.PieceFrom(Tile::Offset(lane, 0), k, line / 8));
  }
};

// Results: a block computes kParts parts of as many rows of A each, which begin at RowOf(row,
// part). Take() is called by the first SparseBlock::kThreads threads of a block, whose part of the
// product begins at (row, line); sums of a warp begin at (warp_row, warp_line) of it. `shared` is
// free and has room for a tile of kRows by kLines elements, those of the block; with kM 1 for one
// of f32, and some more.

/// Maps rows of results whose blocks have successive rows of A.
struct RowsTogether {
  static constexpr int kParts = 1;
  __device__ __forceinline__ int64_t RowOf(int64_t row, int /*part*/) const { return row; }
};

/// Adds the product to a matrix of f32, or overwrites that.
template <bool kWide>
struct AddedSums : RowsTogether {
  StridedRows<float> to;  ///< [rows, lines], or such of each part of the depth
  int64_t rows, lines;
  bool accumulate;
  int64_t part_elements = 0;  ///< From one part to the next.

  template <int kLines, int kM, int kN>
  __device__ __forceinline__ void Take(const Accumulators<kM, kN>& sums, unsigned char* shared,
                                       int64_t row, int64_t line, int warp_row,
                                       int warp_line) const {
    if constexpr (ptx::kHopper && kM == 1 && kWide) {
      TakeByRows<kLines>(sums, reinterpret_cast<float*>(shared), row, line, warp_row);
    } else {
      TakeFromRegisters(sums, row, line, warp_row, warp_line);
    }
  }

 private:
  /// By way of `tile`, of kRows rows of kLines + 8 numbers, whose rows a warp then adds with
  /// accesses of 16 bytes.
  template <int kLines, int kN>
  __device__ __forceinline__ void TakeByRows(const Accumulators<1, kN>& sums, float* tile,
                                             int64_t row, int64_t line, int warp_row) const {
    // Rows begin in other banks.
    constexpr int kStride = kLines + 8, kFours = kLines / 4, kAtOnce = 8;
    constexpr int kStep = SparseBlock::kThreads;
    static_assert(SparseBlock::kRows * kFours % (kStep * kAtOnce) == 0);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      float* const at = tile + (warp_row + AccumulatorRow(i)) * kStride + AccumulatorColumn(i);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float two[2] = {sums[0][n][i], sums[0][n][i + 1]};
        StoreFloats(at + 8 * n, two);
      }
    }
    ptx::SyncNamed(1, kStep);
    for (int first = static_cast<int>(threadIdx.x); first < SparseBlock::kRows * kFours;
         first += kStep * kAtOnce) {
      float old[kAtOnce][4] = {};
      const auto visit = [&](auto&& with) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int number = first + k * kStep, r = number / kFours, l = number % kFours * 4;
          if (row + r < rows && line + l < lines) {
            with(k, tile + r * kStride + l, to.At(row + r, line + l) + blockIdx.z * part_elements);
          }
        }
      };
      if (accumulate) visit([&](int k, const float*, const float* at) { LoadFloats(at, old[k]); });
      visit([&](int k, const float* own, float* at) {
        float four[4];
        LoadFloats(own, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] += old[k][j];
        StoreFloats(at, four);
      });
    }
  }

  template <int kM, int kN>
  __device__ __forceinline__ void TakeFromRegisters(const Accumulators<kM, kN>& sums, int64_t row,
                                                    int64_t line, int warp_row,
                                                    int warp_line) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int64_t r = row + warp_row + 16 * m + AccumulatorRow(i);
        if (r >= rows) continue;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int64_t l = line + warp_line + 8 * n + AccumulatorColumn(i);
          float* const at = to.At(r, l) + blockIdx.z * part_elements;
          float two[2] = {sums[m][n][i], sums[m][n][i + 1]};
          if constexpr (kWide) {
            if (l >= lines) continue;
            if (accumulate) {
              const Packed<float, 2> old = LoadPacked<2>(at);
              two[0] += old[0];
              two[1] += old[1];
            }
            StoreFloats(at, two);
          } else {
            for (int k = 0; k < 2 && l + k < lines; ++k)
              at[k] = accumulate ? at[k] + two[k] : two[k];
          }
        }
      }
    }
  }
};

using SparseSums = Accumulators<SparseBlock::kM, SparseBlock::kN>;

/// Half a step: 32 columns of A from 32 kHalf on.
template <int kHalf, class Dense>
__device__ __forceinline__ void MultiplyHalfStep(SparseSums& sums,
                                                 const SparseBlock::Values& values,
                                                 const typename Dense::Tile& dense, int warp_row,
                                                 int warp_line,
                                                 const uint32_t (&places)[SparseBlock::kM]) {
  uint32_t a[SparseBlock::kM][4];
#pragma unroll
  for (int m = 0; m < SparseBlock::kM; ++m) values.LoadLeft(a[m], warp_row + 16 * m, 16 * kHalf);
#pragma unroll
  for (int n = 0; n < SparseBlock::kN; ++n) {
    uint32_t b[4];
    Dense::Load(b, dense, warp_line + 8 * n, 32 * kHalf);
#pragma unroll
    for (int m = 0; m < SparseBlock::kM; ++m) {
      ptx::MultiplyAddSparse<typename Dense::Element, kHalf>(sums[m][n], a[m], b, places[m]);
    }
  }
}

/// The depth of a product, cut into parts of some steps each: as many blocks as multiprocessors can
/// share evenly, each for another part of a sum.
struct DepthParts {
  int steps = 0;    ///< Of the whole depth.
  int of_part = 0;  ///< Of a part; the last one may have fewer.
  unsigned count = 1;

  __device__ __forceinline__ int First() const { return static_cast<int>(blockIdx.z) * of_part; }
  __device__ __forceinline__ int Count() const {
    const int rest = steps - First();
    return rest < of_part ? rest : of_part;
  }

  static DepthParts Whole(int64_t depth) {
    const auto steps = static_cast<int>(CeilDiv(depth, SparseBlock::kDepth));
    return {steps, steps, 1};
  }
  /// In `blocks` blocks for each part.
  static DepthParts For(int64_t depth, int64_t blocks, int multiprocessors) {
    constexpr int kMost = 8, kLeastSteps = 16;
    constexpr double kEvenEnough = 0.85;
    DepthParts best = Whole(depth);
    double most_used = 0;
    for (int count = 1; count <= kMost; ++count) {
      const int of_part = (best.steps + count - 1) / count;
      if (count > 1 && of_part < kLeastSteps) break;
      const int64_t items = blocks * count;
      const int64_t rounds = (items + multiprocessors - 1) / multiprocessors;
      const double used =
          static_cast<double>(items) / static_cast<double>(rounds * multiprocessors);
      if (used <= most_used) continue;
      most_used = used;
      best.of_part = of_part;
      best.count = CeilDiv(best.steps, of_part);
      if (used >= kEvenEnough) break;
    }
    return best;
  }
};

/// to (+)= the sum of parts, in their order.
struct SumOfParts {
  StridedRows<float> to;
  StridedRows<const float> parts;  ///< Of the first one.
  int64_t part_elements;
  int count;
  bool accumulate;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    float sums[kCount] = {};
    if (accumulate) LoadFloats(to.At(row, column), sums);
    for (int part = 0; part < count; ++part) {
      const Packed<float, kCount> more =
          LoadPacked<kCount>(parts.At(row, column) + part * part_elements);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += more[k];
    }
    StoreFloats(to.At(row, column), sums);
  }
};

/// result.Take(A times `dense`). Grid: blocks of rows of A, of lines, and parts of the depth.
template <class T, class Dense, class Result>
__global__ void __launch_bounds__(SparseBlock::kThreads, 2)
    SparseProduct(CompressedMatrix<T> a, Dense dense, DepthParts parts, Result result) {
  using B = SparseBlock;
  using DenseTile = typename Dense::Tile;
  unsigned char* const shared = DynamicShared<unsigned char>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const int warp_row = warp / B::kWarpsAcross * B::kWarpRows;
  const int warp_line = warp % B::kWarpsAcross * B::kWarpLines;
  constexpr int kPartRows = B::kRows / Result::kParts;
  constexpr int kPartWords = B::kMetadataWords / Result::kParts;
  const int64_t row = int64_t{blockIdx.x} * kPartRows, line = int64_t{blockIdx.y} * B::kLines;
  const int first = parts.First(), steps = parts.Count();

  const auto values_of = [&](int step) {
    return B::Values{shared + step % B::kStages * B::kStageBytes};
  };
  const auto dense_of = [&](int step) {
    return DenseTile{values_of(step).at + B::Values::Bytes(B::kRows)};
  };
  const auto metadata_of = [&](int step) {
    return reinterpret_cast<uint32_t*>(dense_of(step).at + B::kDenseBytes);
  };
  const auto fill = [&](int step) {
    if (step < steps) {
      const int64_t k = int64_t{first + step} * B::kDepth;
#pragma unroll
      for (int part = 0; part < Result::kParts; ++part) {
        const B::Values values{values_of(step).at + part * B::Values::Bytes(kPartRows)};
        values.template CopyAsync<kPartRows, B::kThreads>(a.Values(result.RowOf(row, part), k),
                                                          a.columns / 2, kPartRows, B::kDepth / 2);
        const int word = 4 * thread - part * kPartWords;
        if (word >= 0 && word < kPartWords) {
          ptx::CopyAsync16(metadata_of(step) + 4 * thread,
                           a.Metadata(result.RowOf(row, part), k) + word);
        }
      }
      dense.Fill(dense_of(step), line, k);
    }
    ptx::CopyAsyncCommit();
  };

  for (int step = 0; step < B::kStages - 1; ++step) fill(step);
  SparseSums sums = {};
  for (int step = 0; step < steps; ++step) {
    ptx::CopyAsyncWait<B::kStages - 2>();
    // All have the data of this step, and none reads any more what the next ones overwrite.
    __syncthreads();
    fill(step + B::kStages - 1);
    const uint32_t* const metadata = metadata_of(step) + warp_row / 16 * kWarp + thread % kWarp;
    uint32_t places[B::kM];
#pragma unroll
    for (int m = 0; m < B::kM; ++m) places[m] = metadata[m * kWarp];
    MultiplyHalfStep<0, Dense>(sums, values_of(step), dense_of(step), warp_row, warp_line, places);
    MultiplyHalfStep<1, Dense>(sums, values_of(step), dense_of(step), warp_row, warp_line, places);
  }
  ptx::CopyAsyncWait<0>();
  __syncthreads();
  result.template Take<B::kLines>(sums, shared, row, line, warp_row, warp_line);
}

/// Enqueues it for `rows` rows of A.
template <class T, class Dense, class Result>
Status LaunchSparseProduct(const Stream& stream, std::string_view op, const CompressedMatrix<T>& a,
                           int64_t rows, const Dense& dense, const DepthParts& parts,
                           const Result& result) {
  using B = SparseBlock;
  static_assert(B::kStages * B::kStageBytes >= B::kRows * B::kLines * 2);
  static_assert(CompressedMatrix<T>::kGrain == B::kRows && kPackTile == B::kDepth);
  return Launch(stream, op,
                {.grid = {CeilDiv(rows, B::kRows), CeilDiv(dense.lines, B::kLines), parts.count},
                 .block = {B::kThreads},
                 .shared_bytes = B::kStages * B::kStageBytes},
                SparseProduct<T, Dense, Result>, a, dense, parts, result);
}

}  // namespace weft::kernels::cuda
