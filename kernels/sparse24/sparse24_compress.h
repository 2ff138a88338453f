#pragma once

// Kernels that make compressed matrices: a thread takes 4 x 4 elements.

#include <cstdint>
#include <optional>

#include "kernels/cuda/four.h"
#include "kernels/cuda/row_map.h"
#include "kernels/sparse24/compressed_matrix.h"
#include "kernels/sparse24_mvue/mvue_device.h"

namespace weft::kernels::cuda {

using FourByFour = float[4][4];

/// Rows [4 i, 4 i + 4) of columns [4 j, 4 j + 4), zeros where there are none: rows and columns are
/// multiples of 4.
template <class T>
__device__ __forceinline__ void LoadFourByFour(const StridedRows<const T>& from, int64_t i,
                                               int64_t j, bool inside, bool wide,
                                               FourByFour& block) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    LoadFour(from.At(4 * i + r, 4 * j), inside ? 4 : 0, inside && wide, block[r]);
  }
}

/// W under its mask [rows / 4, columns / 4], in one pass over W: compressed, where the mask keeps
/// two of each four in a row, and its transpose compressed, where it does in a column. Grid: tiles
/// of the columns of `matrix` and of its rows.
template <class From, class T>
__global__ void __launch_bounds__(kPackThreads)
    CompressWeight(StridedRows<const From> weight, bool wide, const uint16_t* mask, int64_t rows,
                   int64_t columns, CompressedMatrix<T> matrix, CompressedMatrix<T> transpose) {
  WEFT_SHARED(tile, CompressedTile);
  WEFT_SHARED(transposed, CompressedTile);
  const int row = static_cast<int>(threadIdx.x) / kPackFours;
  const int column = static_cast<int>(threadIdx.x) % kPackFours;
  const int64_t i = int64_t{blockIdx.y} * kPackFours + row,
                j = int64_t{blockIdx.x} * kPackFours + column;
  const bool inside = 4 * i < rows && 4 * j < columns;
  FourByFour block;
  LoadFourByFour(weight, i, j, inside, wide, block);
  const uint32_t bits = inside ? mask[i * (columns / 4) + j] : 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const KeptTwo kept = KeptOf(bits >> (4 * r) & 15u);
    tile.Put(4 * row + r, column,
             Pack<T>(PickOf(block[r], kept.first), PickOf(block[r], kept.second)), kept);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float four[4] = {block[0][c], block[1][c], block[2][c], block[3][c]};
    const uint32_t own = bits >> c & 0x1111u;
    const KeptTwo kept = KeptOf((own | own >> 3 | own >> 6 | own >> 9) & 15u);
    transposed.Put(4 * column + c, row,
                   Pack<T>(PickOf(four, kept.first), PickOf(four, kept.second)), kept);
  }
  __syncthreads();
  const int64_t first_row = int64_t{blockIdx.y} * kPackTile,
                first_column = int64_t{blockIdx.x} * kPackTile;
  if (matrix.values != nullptr) tile.Store(matrix, first_row, first_column);
  if (transpose.values != nullptr) transposed.Store(transpose, first_column, first_row);
}

/// The transpose of dy [rows, columns], or of its estimate with kEstimate, compressed, in one pass
/// over dy. Where more than two of four rows are not 0 both values become NaN. rows and columns are
/// multiples of 4. Grid: tiles of the rows of `transpose` and of its columns.
template <bool kEstimate, class T>
__global__ void __launch_bounds__(kPackThreads)
    CompressTranspose(StridedRows<const T> dy, bool wide, int64_t rows, int64_t columns,
                      MvueNumbers numbers, CompressedMatrix<T> transpose) {
  WEFT_SHARED(transposed, CompressedTile);
  const int row = static_cast<int>(threadIdx.x) / kPackFours;
  const int column = static_cast<int>(threadIdx.x) % kPackFours;
  const int64_t i = int64_t{blockIdx.y} * kPackFours + row,
                j = int64_t{blockIdx.x} * kPackFours + column;
  const bool inside = 4 * i < rows && 4 * j < columns;
  FourByFour block;
  LoadFourByFour(dy, i, j, inside, wide, block);
  MvueWords words_of{numbers, i, 4 * j};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float four[4] = {block[0][c], block[1][c], block[2][c], block[3][c]};
    if constexpr (kEstimate) {
      if (inside) DrawGroup(numbers.draw, words_of.Of(c), four);
    }
    uint32_t words[4];
    uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      words[r] = Pack<T>(four[r], 0.0f);
      if ((words[r] & 0x7fffu) != 0) bits |= 1u << r;
    }
    const KeptTwo kept = KeptOf(bits);
    const uint32_t two = PickOf(words, kept.first) | PickOf(words, kept.second) << 16;
    transposed.Put(4 * column + c, row, __popc(bits) > 2 ? 0x7fff7fffu : two, kept);
  }
  __syncthreads();
  transposed.Store(transpose, int64_t{blockIdx.x} * kPackTile, int64_t{blockIdx.y} * kPackTile);
}

/// Which fours of a mask are not two elements.
struct MaskProblems {
  int rows;     ///< Not 0: some of a row.
  int columns;  ///< Of a column.
};

/// Adds to `problems`. Its blocks take all of the mask's 16-bit blocks by turns.
__global__ void __launch_bounds__(kBlockThreads)
    InspectMask(const uint16_t* mask, int64_t count, MaskProblems* problems) {
  bool rows = false, columns = false;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint32_t bits = mask[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      rows |= __popc(bits >> (4 * k) & 15u) != 2;
      columns |= __popc(bits >> k & 0x1111u) != 2;
    }
  }
  if (rows) atomicMax(&problems->rows, 1);
  if (columns) atomicMax(&problems->columns, 1);
}

/// to = W under its mask, for products that are not sparse.
template <class From, class T>
struct MaskedMap {
  StridedRows<const From> weight;
  StridedRows<T> to;
  const uint16_t* mask;
  int64_t mask_columns;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    float values[kCount];
    LoadFloats(weight.At(row, column), values);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int64_t c = column + k;
      const uint32_t bits = mask[row / 4 * mask_columns + c / 4];
      if ((bits >> (4 * (row % 4) + c % 4) & 1u) == 0) values[k] = 0;
    }
    StoreFloats(to.At(row, column), values);
  }
};

/// to [columns, rows], without gaps, = the transpose of W under its mask. Both sizes are multiples
/// of 4; `to` is aligned to 8 bytes. Grid: as CompressWeight.
template <class From, class T>
__global__ void __launch_bounds__(kPackThreads)
    MaskedTranspose(StridedRows<const From> weight, bool wide, const uint16_t* mask, int64_t rows,
                    int64_t columns, T* to) {
  const int row = static_cast<int>(threadIdx.x) / kPackFours;
  const int column = static_cast<int>(threadIdx.x) % kPackFours;
  const int64_t i = int64_t{blockIdx.y} * kPackFours + row,
                j = int64_t{blockIdx.x} * kPackFours + column;
  if (4 * i >= rows || 4 * j >= columns) return;
  FourByFour block;
  LoadFourByFour(weight, i, j, true, wide, block);
  const uint32_t bits = mask[i * (columns / 4) + j];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float four[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) four[r] = (bits >> (4 * r + c) & 1u) != 0 ? block[r][c] : 0.0f;
    StoreFloats(to + (4 * j + c) * rows + 4 * i, four);
  }
}

}  // namespace weft::kernels::cuda
