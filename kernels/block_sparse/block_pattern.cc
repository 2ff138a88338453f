#include "kernels/block_sparse/block_pattern.h"

#include <algorithm>
#include <utility>

namespace weft::kernels {

BlockPattern::BlockPattern(int64_t size, int64_t rows, int64_t columns,
                           const std::vector<Place>& places)
    : size_(size), rows_(rows), columns_(columns) {
  const auto inside = [&](const Place& place) {
    return place.row >= 0 && place.row < rows && place.column >= 0 && place.column < columns;
  };
  const auto not_before = [](const Place& a, const Place& b) {
    return a.row != b.row ? a.row > b.row : a.column >= b.column;
  };
  valid_ = size >= 16 && size % 16 == 0 && size <= 256 &&
           std::all_of(places.begin(), places.end(), inside) &&
           std::adjacent_find(places.begin(), places.end(), not_before) == places.end();
  if (!valid_) return;
  std::vector<BlockPlace> numbered;
  for (const Place& place : places) {
    numbered.push_back({static_cast<int32_t>(numbered.size()), static_cast<int32_t>(place.row),
                        static_cast<int32_t>(place.column)});
  }
  by_row_ = ListsOf(rows, &BlockPlace::row, numbered);
  by_column_ = ListsOf(columns, &BlockPlace::column, numbered);
}

BlockPattern::Lists BlockPattern::ListsOf(int64_t lines, int32_t BlockPlace::*line,
                                          const std::vector<BlockPlace>& places) {
  Lists lists{std::vector<int32_t>(static_cast<size_t>(lines) + 1, 0), places};
  std::stable_sort(lists.places.begin(), lists.places.end(),
                   [&](const BlockPlace& a, const BlockPlace& b) { return a.*line < b.*line; });
  for (const BlockPlace& place : places) ++lists.begin[static_cast<size_t>(place.*line) + 1];
  for (size_t i = 1; i < lists.begin.size(); ++i) lists.begin[i] += lists.begin[i - 1];
  return lists;
}

Status BlockPattern::CopyTo(Device device) {
  if (device.type != DeviceType::kCuda || on_device() || !valid_) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(
      cuda::DeviceMemory memory,
      cuda::DeviceMemory::Allocate(device.index, by_row_.Bytes() + by_column_.Bytes()));
  size_t offset = 0;
  for (const Lists* lists : {&by_row_, &by_column_}) {
    WEFT_RETURN_IF_ERROR(memory.CopyFrom(lists->places.data(), lists->PlaceBytes(), offset));
    WEFT_RETURN_IF_ERROR(memory.CopyFrom(lists->begin.data(), lists->Bytes() - lists->PlaceBytes(),
                                         offset + lists->PlaceBytes()));
    offset += lists->Bytes();
  }
  on_device_ = std::move(memory);
  return OkStatus();
}

BlockList BlockPattern::ListOf(const Lists& lists, DeviceType where, size_t offset) const {
  if (where == DeviceType::kCpu) return {lists.begin.data(), lists.places.data()};
  const auto* const at = static_cast<const char*>(on_device_.data()) + offset;
  return {reinterpret_cast<const int32_t*>(at + lists.PlaceBytes()),
          reinterpret_cast<const BlockPlace*>(at)};
}

}  // namespace weft::kernels
