#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/tensor_view.h"

namespace weft::kernels {

/// A block of a block-sparse matrix: its number, and its place in the grid.
struct BlockPlace {
  int32_t block = 0;
  int32_t row = 0;
  int32_t column = 0;
};

/// The blocks by lines of the grid, which are its rows or its columns: those of line i are
/// places[begin[i]] to places[begin[i + 1]] without it, in rising order.
struct BlockList {
  const int32_t* begin = nullptr;  ///< [lines + 1]
  const BlockPlace* places = nullptr;
};

/// Which square blocks of a matrix may be other than zero: places of a grid. Block number i of the
/// matrix is [size, size] of an array [count, size, size]. Immutable, except in CopyTo.
class BlockPattern {
 public:
  struct Place {
    int64_t row = 0;
    int64_t column = 0;
    bool operator==(const Place&) const = default;
  };

  /// A grid of `rows` times `columns` blocks of side `size`; `places` of the blocks, by rows,
  /// rising in each.
  BlockPattern(int64_t size, int64_t rows, int64_t columns, const std::vector<Place>& places);

  /// Brings the lists to `device`, whose products read them there; once is enough. kExhausted when
  /// its memory is.
  Status CopyTo(Device device);

  int64_t size() const { return size_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t count() const { return static_cast<int64_t>(by_row_.places.size()); }
  /// Whether the places are of the grid and in order, and the size is one that products know: a
  /// multiple of 16 up to 256.
  bool valid() const { return valid_; }
  bool on_device() const { return on_device_.data() != nullptr; }

  /// In the memory of the host, or of the device after CopyTo.
  BlockList ByRow(DeviceType where) const { return ListOf(by_row_, where, 0); }
  BlockList ByColumn(DeviceType where) const { return ListOf(by_column_, where, by_row_.Bytes()); }

 private:
  struct Lists {
    std::vector<int32_t> begin;
    std::vector<BlockPlace> places;

    size_t PlaceBytes() const { return places.size() * sizeof(BlockPlace); }
    size_t Bytes() const { return PlaceBytes() + begin.size() * sizeof(int32_t); }
  };
  static Lists ListsOf(int64_t lines, int32_t BlockPlace::*line,
                       const std::vector<BlockPlace>& places);
  BlockList ListOf(const Lists& lists, DeviceType where, size_t offset) const;

  int64_t size_, rows_, columns_;
  bool valid_ = false;
  Lists by_row_, by_column_;
  cuda::DeviceMemory on_device_;  ///< Of each list the places and then `begin`.
};

}  // namespace weft::kernels
