#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/tensor_view.h"

namespace weft::engine {

/// Which part of a logical tensor is here, where several ranks have a part each: some of its
/// rows, of the columns of a matrix, or some columns of some of its rows. The default is all of it.
struct Shard {
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  int axis = 0;               ///< 0: rows, 1: columns.
  int64_t extent = 0;         ///< Of the logical tensor along the axis.
  std::vector<Range> ranges;  ///< Of it, in the order in which they are here; not empty ones.
  Range across = {};          ///< Columns of a row-sharded matrix; none: all.
  int64_t across_extent = 0;  ///< Columns of the logical tensor, where some are here.
  bool first = true;          ///< Of the ranks that have this same part.

  bool whole() const { return ranges.empty(); }

  int64_t size() const {
    int64_t count = 0;
    for (const Range& range : ranges) count += range.size();
    return count;
  }

  /// Shape of the logical tensor, when the part here has the shape `part`.
  Shape LogicalShape(Shape part) const {
    if (!whole()) part.dims[static_cast<size_t>(axis)] = extent;
    if (across.size() > 0) part.dims[1] = across_extent;
    return part;
  }

  /// Shape of the part here, when the logical tensor has the shape `logical`.
  Shape PartShape(Shape logical) const {
    if (!whole()) logical.dims[static_cast<size_t>(axis)] = size();
    if (across.size() > 0) logical.dims[1] = across.size();
    return logical;
  }

  /// The same of a matrix in which each number stands for `block` x `block` of this one. All bounds
  /// are multiples of it.
  Shard InBlocks(int64_t block) const {
    const auto divided = [&](const Range& range) {
      return Range{range.begin / block, range.end / block};
    };
    Shard blocks = *this;
    blocks.extent /= block;
    for (Range& range : blocks.ranges) range = divided(range);
    blocks.across = divided(across);
    blocks.across_extent /= block;
    return blocks;
  }

  /// The same of a matrix in which each number stands for `columns` successive columns of this one.
  /// All bounds of columns are multiples of it.
  Shard InColumns(int64_t columns) const {
    const auto divided = [&](const Range& range) {
      return Range{range.begin / columns, range.end / columns};
    };
    Shard other = *this;
    other.across = divided(across);
    other.across_extent /= columns;
    if (axis == 0) return other;
    other.extent /= columns;
    for (Range& range : other.ranges) range = divided(range);
    return other;
  }

  /// The part that has, of these rows, the columns that `columns` says, one range of them.
  Shard Across(const Shard& columns) const {
    Shard both = *this;
    both.across = columns.ranges.front();
    both.across_extent = columns.extent;
    both.first = true;
    return both;
  }

  /// Calls run(part, logical, count) for each run of elements that follow one another both
  /// in the part, of this shape, from element `part` on and in the logical tensor from `logical`
  /// on.
  template <class Run>
  void ForEachRun(const Shape& shape, Run&& run) const {
    if (whole()) {
      run(int64_t{0}, int64_t{0}, shape.Elements());
      return;
    }
    if (across.size() > 0) {
      int64_t part = 0;
      for (const Range& range : ranges) {
        for (int64_t row = range.begin; row < range.end; ++row, part += across.size()) {
          run(part, row * across_extent + across.begin, across.size());
        }
      }
      return;
    }
    const int64_t rows = axis == 0 ? 1 : shape[0];
    const int64_t unit = axis == 0 ? shape.Elements() / std::max<int64_t>(shape[0], 1) : 1;
    int64_t part = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (const Range& range : ranges) {
        const int64_t count = range.size() * unit;
        run(part, (row * extent + range.begin) * unit, count);
        part += count;
      }
    }
  }
};

}  // namespace weft::engine
