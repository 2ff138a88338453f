#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Products of a sparse matrix A [rows, columns] and a dense one. Four neighbouring rows are summed
/// together: a column in which two of them have an element loads a line of the other matrix once
/// for both, so that a product does as many multiply-adds for each load as a dense one does.
/// Columns are listed by which of the four rows have elements there, which fixes the registers that
/// an entry adds to. With a 2:4 mask along the rows of a column, each column is in one list of
/// pairs.
inline constexpr int64_t kMostSparseDepth = 256;  ///< Columns of a block on any instruction set.
inline constexpr int kPairLists = 6;
inline constexpr int kRowLists = 4;

/// Entries of four rows over one block of columns: first the lists of pairs, then those of single
/// rows. A column with three or four elements is in two lists.
struct SparseGroup {
  uint32_t first_entry;  ///< In the array of columns.
  uint32_t first_value;  ///< In the array of values: two for an entry of a pair, one of a row.
  uint16_t pairs[kPairLists];
  uint16_t rows[kRowLists];
};

/// Rows of each list of pairs, in an order in which neighbours share a row: it stays in registers.
struct SparsePair {
  uint8_t first, second;
};
constexpr SparsePair kSparsePairs[kPairLists] = {{2, 3}, {1, 3}, {0, 3}, {0, 1}, {1, 2}, {0, 2}};

/// The lists of a column by its elements, bit r for row r: a pair or none, one more pair of four
/// elements, a row of one or three. The number after the last list stands for none.
struct SparseCode {
  uint8_t pair = kPairLists;
  SparsePair rows = {0, 0};  ///< Of `pair`.
  uint8_t other_pair = kPairLists;
  uint8_t row = kRowLists;
  uint8_t element = 0;  ///< `row`, or any of the four.
};
struct SparseCodes {
  SparseCode of[16];
};

constexpr uint8_t SparsePairList(int first, int second) {
  for (int list = 0; list < kPairLists; ++list) {
    if (kSparsePairs[list].first == first && kSparsePairs[list].second == second) {
      return static_cast<uint8_t>(list);
    }
  }
  return kPairLists;
}

constexpr SparseCodes ListSparseCodes() {
  SparseCodes codes{};
  for (int code = 0; code < 16; ++code) {
    int rows[4] = {}, count = 0;
    for (int row = 0; row < 4; ++row) {
      if ((code >> row & 1) != 0) rows[count++] = row;
    }
    SparseCode& lists = codes.of[code];
    if (count >= 2) {
      lists.pair = SparsePairList(rows[0], rows[1]);
      lists.rows = kSparsePairs[lists.pair];
    }
    if (count == 4) lists.other_pair = SparsePairList(rows[2], rows[3]);
    if (count % 2 == 1) lists.row = lists.element = static_cast<uint8_t>(rows[count - 1]);
  }
  return codes;
}

constexpr SparseCodes kSparseCodes = ListSparseCodes();

/// Groups of one block of columns, each with its entries.
struct SparseBlock {
  const SparseGroup* groups;
  int64_t count;
  const uint16_t* columns;  ///< Of all entries: a column of the block.
  const float* values;
};

/// Lines of the dense matrix are cut into tiles of `tile` numbers.
template <class T>
struct SparseTiles {
  /// to[c * tile + r] = from[r * stride + c] for rows [0, rows), at most a tile, and 0 for those
  /// that are missing from it.
  void (*pack_columns)(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to);
  /// to[r * tile + c] = from[r * stride + c] for columns [0, columns), at most a tile, likewise.
  void (*pack_rows)(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to);
  /// to[r * stride + c] = from[c * tile + r] + bias[c] for rows [0, rows), at most a tile; bias may
  /// be null.
  void (*unpack_columns)(const float* from, int64_t rows, int64_t columns, const float* bias, T* to,
                         int64_t stride);
};

struct SparseKernels {
  int64_t tile;   ///< Numbers of a line at a time.
  int64_t depth;  ///< Columns of a block: as many lines of a tile stay in the first-level cache.
  int64_t lanes;  ///< Numbers that are added up at a time in `sample`.
  /// y += A x over one block: x [depth, tile], y [4 * count, tile].
  void (*multiply)(const SparseBlock& block, const float* x, float* y);
  /// sums[i] += the products of row r of y and line c of x, for the element (r, c) of value i after
  /// the first of the block: y [4 * count, tile], x [depth, tile], sums [values, lanes].
  void (*sample)(const SparseBlock& block, const float* x, const float* y, float* sums);
  /// to[r * stride + c] (+)= what sums[i] adds up to, likewise.
  void (*unpack_sums)(const SparseBlock& block, const float* sums, bool accumulate, float* to,
                      int64_t stride);
  /// to[r * stride + c] = from[r * tile + c], or += with `accumulate`, for columns [0, columns).
  void (*unpack_rows)(const float* from, int64_t rows, int64_t columns, bool accumulate, float* to,
                      int64_t stride);
  /// Lists what is not 0 of four columns of a matrix as a group of its transpose: element (r, c)
  /// at from[r * stride + c]. `entries` and `values` have room for 2 and 4 a row, and for one more
  /// pair.
  void (*list_columns)(const float* from, int64_t stride, int64_t rows, SparseGroup& group,
                       uint16_t* entries, float* values);
  FloatTypes<SparseTiles> tiles;
};

WEFT_ISA_TABLE(SparseKernels)

}  // namespace weft::kernels::cpu
