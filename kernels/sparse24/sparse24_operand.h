#pragma once

#include <cstdint>
#include <functional>

#include "common/status.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/sparse24/sparse24_simd.h"
#include "kernels/tensor_view.h"

namespace weft::kernels::cpu {

/// A sparse matrix A [rows, columns] in groups of four rows, for the kernels that were active when
/// it was made. rows is a multiple of 4. Not thread-safe.
class SparseOperand {
 public:
  /// Elements of rows [4 group, 4 group + 4) in columns [first, first + count): codes[c] has bit r
  /// for row r.
  using CodesOf = std::function<void(int64_t group, int64_t first, int64_t count, uint8_t* codes)>;

  SparseOperand(int64_t rows, int64_t columns) { Resize(rows, columns); }

  /// For another matrix, without its elements. Keeps the memory.
  void Resize(int64_t rows, int64_t columns) {
    kernels_ = &PickSparseKernels();
    rows_ = rows;
    columns_ = columns;
  }

  /// Lists the elements. kExhausted when there is no memory.
  Status List(const CodesOf& codes_of);

  /// Takes the values of the elements from A, or from its transpose; f32, bf16 or f16.
  void Take(const TensorView& matrix);
  void TakeTransposed(const TensorView& transpose);

  /// Lists the elements that are not 0, and takes their values, of A given by its transpose.
  Status ListTransposed(const TensorView& transpose);

  /// Rows [line, line + lines) and columns [column, column + columns) of a result.
  using OnBlock = std::function<void(int64_t line, int64_t lines, int64_t column, int64_t columns)>;

  /// y [m, rows] = x [m, columns] Aᵀ + bias; bias [rows] may be null. Calls `written`, unless it is
  /// empty, for each block of y, by the thread that wrote it and has it in its cache. With `paired`
  /// these are blocks of the first half of the columns, and the same ones of the second half are
  /// written, too; rows is then a multiple of 8.
  void Multiply(const TensorView& x, const float* bias, const TensorView& y,
                const OnBlock& written = {}, bool paired = false) const;

  /// y [rows, n] (+)= A x for x [columns, n]; y is f32.
  void MultiplyRows(const TensorView& x, bool accumulate, const TensorView& y) const;

  /// At the elements of the rows of A from `first_row` on, y (+)= dyᵀ x for dy [m, rows] and
  /// x [m, columns]; without `accumulate` all others become 0. y [rows, columns] is f32. rows and
  /// first_row are multiples of 4. kExhausted when there is no memory.
  Status SampleProduct(const TensorView& x, const TensorView& dy, int64_t first_row,
                       bool accumulate, const TensorView& y) const;

  int64_t Bytes() const { return bytes_; }

 private:
  int64_t groups() const { return rows_ / 4; }
  int64_t blocks() const { return (columns_ + kernels_->depth - 1) / kernels_->depth; }
  const SparseGroup* Groups(int64_t block) const {
    return static_cast<const SparseGroup*>(lists_.get()) + block * groups();
  }
  SparseBlock Block(int64_t block, int64_t first_group, int64_t count) const;
  int64_t DepthOf(int64_t block) const;
  Status ReserveLists();
  Status Reserve(int64_t entries, int64_t values);
  int64_t PanelRows(int64_t tiles, int64_t parts) const;
  /// Multiplies by a dense matrix with lines of `count` numbers: pack(first, count, lines) brings a
  /// tile of each line, finish(first, count, row, rows, sums) takes the sums of a panel of rows.
  /// The rows are of `parts` equal parts, and a panel of one is followed by the same of the next.
  template <class Pack, class Finish>
  void MultiplyTiles(int64_t count, int64_t parts, const Pack& pack, const Finish& finish) const;
  /// Calls fn(block, group, lines, listed) for each group, where element (c, r) of the transpose is
  /// at lines[c * tile + r], as f32, for columns c of the block and rows r of the group. `listed`
  /// is the same for all of one thread.
  /// SampleProduct of `count` tiles of lines: x at `lines`, dy at `rows`.
  void SampleTiles(const float* lines, const float* rows, int64_t count, int64_t first_row,
                   bool accumulate, const TensorView& y) const;
  /// Values of the groups [first_group, first_group + count) over a block.
  int64_t ValuesOf(int64_t block, int64_t first_group, int64_t count) const;
  template <class Fn>
  void ForEachGroup(const TensorView& transpose, const Fn& fn) const;

  const SparseKernels* kernels_ = nullptr;
  int64_t rows_ = 0, columns_ = 0;
  AlignedMemory lists_, entries_, values_;  // [blocks, groups], and what they point at
  int64_t most_lists_ = 0, most_entries_ = 0, most_values_ = 0;
  int64_t values_listed_ = 0;  ///< By List().
  int64_t bytes_ = 0;
};

}  // namespace weft::kernels::cpu
