#pragma once

// A matrix that is 2:4 sparse along its rows, as the sparse tensor cores read it: the values that
// are kept, and metadata, which says where they are. Device only, except sizes.

#include <cstdint>

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Where the two that are kept of four are, the first before the second.
struct KeptTwo {
  int first, second;
};

/// Picks the elements whose bits are set in `bits`, two at most; others where there are fewer.
__device__ __forceinline__ KeptTwo KeptOf(uint32_t bits) {
  const int lowest = bits == 0 ? 0 : __ffs(static_cast<int>(bits)) - 1;
  const int highest = 31 - __clz(static_cast<int>(bits));
  const int first = lowest < 2 ? lowest : 2;
  return {first, highest > first ? highest : 3};
}

/// What a block of threads compresses at a time: kPackTile rows of kPackTile columns, 4 x 4
/// elements a thread.
inline constexpr int kPackTile = 64;
inline constexpr int kPackFours = kPackTile / 4;
inline constexpr int kPackThreads = kPackFours * kPackFours;

/// The compressed matrix in memory: `rows` and `columns` are padded to multiples of 128 with zeros.
template <class T>
struct CompressedMatrix {
  T* values;           ///< [rows, columns / 2]
  uint32_t* metadata;  ///< [columns / 64, rows / 16, 32]: see MetadataWord
  int64_t rows, columns;

  static constexpr int64_t kGrain = 128;
  static constexpr int64_t Padded(int64_t size) { return (size + kGrain - 1) / kGrain * kGrain; }
  /// Bytes of both for a matrix of these sizes, a multiple of 256.
  static constexpr int64_t Bytes(int64_t rows, int64_t columns) {
    return Padded(rows) * Padded(columns) / 2 * static_cast<int64_t>(sizeof(T)) +
           Padded(rows) * Padded(columns) / 8;
  }
  /// The matrix of these sizes in that memory.
  static CompressedMatrix In(void* memory, int64_t rows, int64_t columns) {
    const int64_t padded_rows = Padded(rows), padded_columns = Padded(columns);
    auto* values = static_cast<T*>(memory);
    return {values, reinterpret_cast<uint32_t*>(values + padded_rows * padded_columns / 2),
            padded_rows, padded_columns};
  }

  __device__ __forceinline__ T* Values(int64_t row, int64_t column) const {
    return values + (row * columns + column) / 2;
  }
  /// Those of rows from `row` on, a multiple of 16, of the 64 columns from `column` on.
  __device__ __forceinline__ uint32_t* Metadata(int64_t row, int64_t column) const {
    return metadata + (column / kPackTile * (rows / 16) + row / 16) * kWarp;
  }
};

/// A tile of kPackTile rows and columns on its way to a compressed matrix, in shared memory.
struct CompressedTile {
  uint32_t values[kPackTile][kPackFours + 1];  ///< Two each; one more for rows in other banks.
  uint8_t places[kPackTile][kPackFours];       ///< Bits of ptx::MultiplyAddSparse for four columns.

  /// Four neighbours of a row: two values of them, and where these are.
  __device__ __forceinline__ void Put(int row, int four, uint32_t two, KeptTwo kept) {
    values[row][four] = two;
    places[row][four] = static_cast<uint8_t>(kept.first | kept.second << 2);
  }

  /// The places of 16 columns from 16 `part` on.
  __device__ __forceinline__ uint32_t HalfWord(int row, int part) const {
    uint32_t half = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) half |= uint32_t{places[row][4 * part + i]} << (4 * i);
    return half;
  }

  /// Lane `lane` of the metadata of rows [row, row + 16): this is the one place that knows the
  /// order. With group = lane / 4 and t = lane % 4 a word holds, in its lower half, columns 16 t to
  /// 16 t + 15 of row group, and in the upper one those of row group + 8. So lanes 4 group and
  /// 4 group + 1 have what mma.sp.m16n8k32 reads with selector 0 for columns 0 to 31, and the next
  /// two what it reads with selector 1 for columns 32 to 63 (PTX ISA, metadata layout of
  /// m16n8k32 for f16 and bf16).
  __device__ __forceinline__ uint32_t MetadataWord(int row, int lane) const {
    const int group = lane / 4, t = lane % 4;
    return HalfWord(row + group, t) | HalfWord(row + group + 8, t) << 16;
  }

  /// Writes it to where row and column 0 of the tile are in `to`. By kPackThreads threads, after a
  /// barrier.
  template <class T>
  __device__ __forceinline__ void Store(const CompressedMatrix<T>& to, int64_t first_row,
                                        int64_t first_column) const {
    static_assert(sizeof(T) == 2 && kPackThreads == kPackTile * kPackFours / 4);
    const int thread = static_cast<int>(threadIdx.x), row = thread / 4, four = thread % 4 * 4;
    const uint32_t* two = &values[row][four];
    ptx::Store16(to.Values(first_row + row, first_column + int64_t{4} * four),
                 uint4{two[0], two[1], two[2], two[3]});
    constexpr int kWords = kPackTile / 16 * kWarp;
    if (thread < kWords) {
      to.Metadata(first_row, first_column)[thread] =
          MetadataWord(thread / kWarp * 16, thread % kWarp);
    }
  }
};

/// Element `place` of four; an index would put them into memory.
template <class T>
__device__ __forceinline__ T PickOf(const T (&four)[4], int place) {
  const T low = place == 0 ? four[0] : four[1], high = place == 2 ? four[2] : four[3];
  return place < 2 ? low : high;
}

}  // namespace weft::kernels::cuda
