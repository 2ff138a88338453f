#pragma once

// What the kernels of block_sparse share: which part of a product a block of threads computes.

#include <cstdint>

#include "kernels/block_sparse/block_pattern.h"
#include "kernels/cuda/row_map.h"

namespace weft::kernels::cuda {

/// Blocks of the matrix are cut into units of kUnit rows and columns; those at the end of a block
/// may have fewer.
inline constexpr int kUnit = 32;

inline constexpr int kBlockSparseThreads = 128;

__device__ __forceinline__ int RowsLeft(int64_t rows, int most) {
  return rows < most ? static_cast<int>(rows) : most;
}

/// out = in times the blocks + bias, or out += in times the blocks. A line of the grid is a row of
/// it in the product x Bᵀ (kForward), a column in dy B. Grid: units of lines, then tiles of rows.
template <bool kForward, class T, class Stored>
struct BlockProduct {
  StridedRows<const T> in;  ///< [rows, blocks across the lines * size]
  const Stored* blocks;     ///< [count, size, size]
  StridedRows<T> out;       ///< [rows, lines * size]
  const float* bias;        ///< [lines * size], or none
  BlockList list;           ///< By lines.
  int64_t rows;
  int size;
  bool accumulate;

  __device__ __forceinline__ int Units() const { return (size + kUnit - 1) / kUnit; }
  __device__ __forceinline__ int Line() const { return static_cast<int>(blockIdx.x) / Units(); }
  /// The first column of this unit in its line, and how many it has.
  __device__ __forceinline__ int Begin() const {
    return static_cast<int>(blockIdx.x) % Units() * kUnit;
  }
  __device__ __forceinline__ int Width() const { return RowsLeft(size - Begin(), kUnit); }
  __device__ __forceinline__ int64_t OutColumn() const { return int64_t{Line()} * size + Begin(); }

  /// Terms of the sum: units of the blocks of a line, in their order.
  __device__ __forceinline__ int Steps() const {
    return (list.begin[Line() + 1] - list.begin[Line()]) * Units();
  }
  __device__ __forceinline__ BlockPlace PlaceOf(int step) const {
    return list.places[list.begin[Line()] + step / Units()];
  }
  /// The first number of the depth of a block that a step has.
  __device__ __forceinline__ int DepthOf(int step) const { return step % Units() * kUnit; }
  __device__ __forceinline__ int64_t InColumn(int step) const {
    const BlockPlace place = PlaceOf(step);
    return int64_t{kForward ? place.column : place.row} * size + DepthOf(step);
  }
  /// Element (row, column) of a unit of a block, as it is stored; null outside of the block.
  __device__ __forceinline__ const Stored* BlockAt(int step, int row, int column) const {
    const int r = row + (kForward ? Begin() : DepthOf(step));
    const int c = column + (kForward ? DepthOf(step) : Begin());
    if (r >= size || c >= size) return nullptr;
    return blocks + (int64_t{PlaceOf(step).block} * size + r) * size + c;
  }
};

/// dB (+)= dyᵀ x where B has blocks. Grid: units of blocks.
template <class T>
struct BlockGradient {
  StridedRows<const T> x;   ///< [rows, columns of the grid * size]
  StridedRows<const T> dy;  ///< [rows, rows of the grid * size]
  float* dblocks;           ///< [count, size, size]
  const BlockPlace* places;
  int64_t rows;
  int size;
  bool accumulate;

  __device__ __forceinline__ int Units() const { return (size + kUnit - 1) / kUnit; }
  __device__ __forceinline__ BlockPlace Place() const {
    return places[static_cast<int>(blockIdx.x) / (Units() * Units())];
  }
  /// Where this unit begins in its block.
  __device__ __forceinline__ int Row() const {
    return static_cast<int>(blockIdx.x) / Units() % Units() * kUnit;
  }
  __device__ __forceinline__ int Column() const {
    return static_cast<int>(blockIdx.x) % Units() * kUnit;
  }
  __device__ __forceinline__ const T* X(int64_t row) const {
    return x.At(row, int64_t{Place().column} * size + Column());
  }
  __device__ __forceinline__ const T* Dy(int64_t row) const {
    return dy.At(row, int64_t{Place().row} * size + Row());
  }
  /// Element (row, column) of the unit; null outside of the block.
  __device__ __forceinline__ float* At(int row, int column) const {
    if (Row() + row >= size || Column() + column >= size) return nullptr;
    return dblocks + (int64_t{Place().block} * size + Row() + row) * size + Column() + column;
  }
};

}  // namespace weft::kernels::cuda
