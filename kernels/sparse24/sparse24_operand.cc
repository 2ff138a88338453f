#include "kernels/sparse24/sparse24_operand.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"

namespace weft::kernels::cpu {
namespace {

// Part of the result that stays in a thread's second-level cache while blocks of columns are added
// to it.
constexpr int64_t kPanelBytes = 256 << 10;

// Columns of the result that are passed on at a time, from a thread's first-level cache.
constexpr int64_t kStripRows = 256;

// Bytes of both operands of a sampled product that are packed at a time.
constexpr int64_t kPackedBytes = 16 << 20;

// Uses of scratch memory.
struct Lines;
struct Sums;

constexpr int64_t Parts(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}

struct Counts {
  int64_t entries = 0, values = 0;
};

Counts CountLists(const uint8_t* codes, int64_t count, SparseGroup& group) {
  std::array<uint16_t, 16> columns{};
  for (int64_t c = 0; c < count; ++c) ++columns[codes[c]];
  std::array<uint16_t, kPairLists + 1> pairs{};
  std::array<uint16_t, kRowLists + 1> rows{};
  for (int code = 1; code < 16; ++code) {
    const SparseCode& lists = kSparseCodes.of[code];
    for (const uint8_t pair : {lists.pair, lists.other_pair}) {
      pairs[pair] = static_cast<uint16_t>(pairs[pair] + columns[code]);
    }
    rows[lists.row] = static_cast<uint16_t>(rows[lists.row] + columns[code]);
  }
  Counts counts;
  for (int list = 0; list < kPairLists; ++list) {
    group.pairs[list] = pairs[list];
    counts.entries += pairs[list];
    counts.values += 2 * pairs[list];
  }
  for (int row = 0; row < kRowLists; ++row) {
    group.rows[row] = rows[row];
    counts.entries += rows[row];
    counts.values += rows[row];
  }
  return counts;
}

void ListColumns(const uint8_t* codes, int64_t count, const SparseGroup& group, uint16_t* entries) {
  std::array<uint16_t*, kPairLists> pairs{};
  std::array<uint16_t*, kRowLists> rows{};
  for (int list = 0; list < kPairLists; entries += group.pairs[list++]) pairs[list] = entries;
  for (int row = 0; row < kRowLists; entries += group.rows[row++]) rows[row] = entries;
  for (int64_t c = 0; c < count; ++c) {
    const SparseCode& lists = kSparseCodes.of[codes[c]];
    for (const uint8_t pair : {lists.pair, lists.other_pair}) {
      if (pair < kPairLists) *pairs[pair]++ = static_cast<uint16_t>(c);
    }
    if (lists.row < kRowLists) *rows[lists.row]++ = static_cast<uint16_t>(c);
  }
}

// value_of(row of the group, column of the block)
template <class ValueOf>
void TakeValues(const SparseGroup& group, const uint16_t* columns, float* values,
                const ValueOf& value_of) {
  for (int list = 0; list < kPairLists; ++list) {
    const SparsePair pair = kSparsePairs[list];
    for (int i = 0; i < group.pairs[list]; ++i, ++columns, values += 2) {
      values[0] = value_of(pair.first, *columns);
      values[1] = value_of(pair.second, *columns);
    }
  }
  for (int row = 0; row < kRowLists; ++row) {
    for (int i = 0; i < group.rows[row]; ++i) *values++ = value_of(row, *columns++);
  }
}

template <class T>
void* MemoryFor(AlignedMemory& memory, int64_t count) {
  memory.reset();
  memory = AllocateAligned(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T));
  return memory.get();
}

}  // namespace

int64_t SparseOperand::DepthOf(int64_t block) const {
  return std::min(kernels_->depth, columns_ - block * kernels_->depth);
}

SparseBlock SparseOperand::Block(int64_t block, int64_t first_group, int64_t count) const {
  return {Groups(block) + first_group, count, static_cast<const uint16_t*>(entries_.get()),
          static_cast<const float*>(values_.get())};
}

Status SparseOperand::ReserveLists() {
  const int64_t items = blocks() * groups();
  if (items <= most_lists_ && lists_ != nullptr) return OkStatus();
  most_lists_ = 0;
  if (MemoryFor<SparseGroup>(lists_, items) == nullptr) {
    return ExhaustedError("sparse matrix: no memory for " + std::to_string(items) + " groups");
  }
  most_lists_ = items;
  return OkStatus();
}

Status SparseOperand::Reserve(int64_t entries, int64_t values) {
  const bool grows = entries > most_entries_ || values > most_values_;
  if (!grows) return OkStatus();
  most_entries_ = most_values_ = 0;
  if (MemoryFor<uint16_t>(entries_, entries) == nullptr ||
      MemoryFor<float>(values_, values) == nullptr) {
    return ExhaustedError("sparse matrix: no memory for " + std::to_string(values) + " values");
  }
  most_entries_ = entries;
  most_values_ = values;
  bytes_ = blocks() * groups() * static_cast<int64_t>(sizeof(SparseGroup)) +
           entries * static_cast<int64_t>(sizeof(uint16_t)) +
           values * static_cast<int64_t>(sizeof(float));
  return OkStatus();
}

Status SparseOperand::List(const CodesOf& codes_of) {
  const int64_t items = blocks() * groups();
  WEFT_RETURN_IF_ERROR(ReserveLists());
  auto* lists = static_cast<SparseGroup*>(lists_.get());
  const auto for_each = [&](const auto& fn) {
    ParallelFor(items, 16, [&](int64_t begin, int64_t end) {
      std::array<uint8_t, kMostSparseDepth> codes;
      for (int64_t item = begin; item < end; ++item) {
        const int64_t block = item / groups(), count = DepthOf(block);
        codes_of(item % groups(), block * kernels_->depth, count, codes.data());
        fn(codes.data(), count, lists[item]);
      }
    });
  };
  for_each([](const uint8_t* codes, int64_t count, SparseGroup& group) {
    const Counts counts = CountLists(codes, count, group);
    group.first_entry = static_cast<uint32_t>(counts.entries);
    group.first_value = static_cast<uint32_t>(counts.values);
  });
  Counts before;
  for (int64_t item = 0; item < items; ++item) {
    const Counts own = {lists[item].first_entry, lists[item].first_value};
    lists[item].first_entry = static_cast<uint32_t>(before.entries);
    lists[item].first_value = static_cast<uint32_t>(before.values);
    before.entries += own.entries;
    before.values += own.values;
  }
  WEFT_RETURN_IF_ERROR(Reserve(before.entries, before.values));
  values_listed_ = before.values;
  auto* entries = static_cast<uint16_t*>(entries_.get());
  for_each([entries](const uint8_t* codes, int64_t count, const SparseGroup& group) {
    ListColumns(codes, count, group, entries + group.first_entry);
  });
  return OkStatus();
}

void SparseOperand::Take(const TensorView& matrix) {
  WithFloatType(matrix.dtype, [&]<class T>() {
    const auto* entries = static_cast<const uint16_t*>(entries_.get());
    auto* values = static_cast<float*>(values_.get());
    const int64_t stride = matrix.row_stride;
    ParallelFor(blocks() * groups(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t block = item / groups(), group = item % groups();
        const T* corner = matrix.As<T>() + 4 * group * stride + block * kernels_->depth;
        const SparseGroup& list = Groups(block)[group];
        TakeValues(
            list, entries + list.first_entry, values + list.first_value,
            [=](int64_t row, int64_t column) { return ToFloat(corner[row * stride + column]); });
      }
    });
  });
}

// Rows of the transpose are far apart, and so would fall on the same lines of the cache: as many of
// their columns as a tile has are brought together first.
template <class Fn>
void SparseOperand::ForEachGroup(const TensorView& transpose, const Fn& fn) const {
  const int64_t tile = kernels_->tile, strips = Parts(rows_, tile);
  WithFloatType(transpose.dtype, [&]<class T>() {
    ParallelFor(blocks() * strips, 1, [&](int64_t begin, int64_t end) {
      auto* lines = ThreadScratch<Lines, float>(kernels_->depth * tile);
      Counts listed = {-1, -1};
      for (int64_t item = begin; item < end; ++item) {
        const int64_t block = item / strips, first = item % strips * tile;
        const int64_t here = std::min(tile, rows_ - first);
        kernels_->tiles.Of<T>().pack_rows(
            transpose.As<T>() + block * kernels_->depth * transpose.row_stride + first,
            transpose.row_stride, DepthOf(block), here, lines);
        for (int64_t row = 0; row < here; row += 4) {
          fn(block, (first + row) / 4, lines + row, listed);
        }
      }
    });
  });
}

void SparseOperand::TakeTransposed(const TensorView& transpose) {
  const auto* entries = static_cast<const uint16_t*>(entries_.get());
  auto* values = static_cast<float*>(values_.get());
  const int64_t tile = kernels_->tile;
  ForEachGroup(transpose, [&](int64_t block, int64_t group, const float* lines, Counts&) {
    const SparseGroup& list = Groups(block)[group];
    TakeValues(list, entries + list.first_entry, values + list.first_value,
               [=](int64_t row, int64_t column) { return lines[column * tile + row]; });
  });
}

Status SparseOperand::ListTransposed(const TensorView& transpose) {
  const int64_t items = blocks() * groups();
  WEFT_RETURN_IF_ERROR(ReserveLists());
  // At most two entries and four values a column, and a pair that list_columns may write behind
  // them. What a thread lists is contiguous: the product reads it in this order.
  const int64_t most_entries = 2 * kernels_->depth + 1, most_values = 2 * most_entries;
  WEFT_RETURN_IF_ERROR(Reserve(items * most_entries, items * most_values));
  auto* entries = static_cast<uint16_t*>(entries_.get());
  auto* values = static_cast<float*>(values_.get());
  auto* lists = static_cast<SparseGroup*>(lists_.get());
  ForEachGroup(transpose, [&](int64_t block, int64_t group, const float* lines, Counts& listed) {
    const int64_t item = block * groups() + group;
    SparseGroup& list = lists[item];
    if (listed.entries < 0) listed = {item * most_entries, item * most_values};
    list.first_entry = static_cast<uint32_t>(listed.entries);
    list.first_value = static_cast<uint32_t>(listed.values);
    kernels_->list_columns(lines, kernels_->tile, DepthOf(block), list, entries + listed.entries,
                           values + listed.values);
    for (const uint16_t pairs : list.pairs) {
      listed.entries += pairs;
      listed.values += 2 * pairs;
    }
    for (const uint16_t rows : list.rows) {
      listed.entries += rows;
      listed.values += rows;
    }
  });
  return OkStatus();
}

// Rows of each part of the result at a time: such that there is work for each thread, and that
// those of all parts stay in the cache.
int64_t SparseOperand::PanelRows(int64_t tiles, int64_t parts) const {
  constexpr int64_t kLeastRows = 64;
  const int64_t of_part = rows_ / parts;
  const int64_t most = kPanelBytes / (parts * kernels_->tile * static_cast<int64_t>(sizeof(float)));
  const int64_t shares = Parts(2 * Threads(), tiles);
  const int64_t rows = std::max(Parts(of_part, shares), std::min(kLeastRows, of_part));
  return Parts(std::min(rows, most), 4) * 4;
}

// Tiles of `count` numbers of each line of the dense matrix, times panels of rows of this one.
template <class Pack, class Finish>
void SparseOperand::MultiplyTiles(int64_t count, int64_t parts, const Pack& pack,
                                  const Finish& finish) const {
  const int64_t tiles = Parts(count, kernels_->tile), panel = PanelRows(tiles, parts);
  const int64_t of_part = rows_ / parts, panels = Parts(of_part, panel);
  ParallelFor(tiles * panels, 1, [&](int64_t begin, int64_t end) {
    auto* lines = ThreadScratch<Lines, float>(columns_ * kernels_->tile);
    auto* sums = ThreadScratch<Sums, float>(panel * kernels_->tile);
    int64_t packed = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task / panels, first_row = task % panels * panel;
      const int64_t first = tile * kernels_->tile, here = std::min(kernels_->tile, count - first);
      if (packed != tile) pack(first, here, lines);
      packed = tile;
      const int64_t rows = std::min(panel, of_part - first_row);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * of_part + first_row;
        std::fill_n(sums, rows * kernels_->tile, 0.0f);
        for (int64_t block = 0; block < blocks(); ++block) {
          kernels_->multiply(Block(block, row / 4, rows / 4),
                             lines + block * kernels_->depth * kernels_->tile, sums);
        }
        finish(first, here, row, rows, sums);
      }
    }
  });
}

void SparseOperand::Multiply(const TensorView& x, const float* bias, const TensorView& y,
                             const OnBlock& written, bool paired) const {
  if (x.shape[0] == 0) return;
  const int64_t of_part = paired ? rows_ / 2 : rows_;
  WithFloatType(x.dtype, [&]<class T>() {
    const SparseTiles<T>& loops = kernels_->tiles.Of<T>();
    MultiplyTiles(
        x.shape[0], paired ? 2 : 1,
        [&](int64_t first, int64_t count, float* lines) {
          loops.pack_columns(x.As<T>() + first * x.row_stride, x.row_stride, count, columns_,
                             lines);
        },
        [&](int64_t first, int64_t count, int64_t row, int64_t rows, const float* sums) {
          const int64_t strip = written ? kStripRows : rows;
          for (int64_t at = row; at < row + rows; at += strip) {
            const int64_t own = std::min(strip, row + rows - at);
            loops.unpack_columns(sums + (at - row) * kernels_->tile, count, own,
                                 bias == nullptr ? nullptr : bias + at,
                                 y.As<T>() + first * y.row_stride + at, y.row_stride);
            const bool last_part = !paired || at >= of_part;
            if (written && last_part) written(first, count, paired ? at - of_part : at, own);
          }
        });
  });
}

void SparseOperand::MultiplyRows(const TensorView& x, bool accumulate, const TensorView& y) const {
  if (x.shape[1] == 0) return;
  WithFloatType(x.dtype, [&]<class T>() {
    const SparseTiles<T>& loops = kernels_->tiles.Of<T>();
    MultiplyTiles(
        x.shape[1], 1,
        [&](int64_t first, int64_t count, float* lines) {
          loops.pack_rows(x.As<T>() + first, x.row_stride, columns_, count, lines);
        },
        [&](int64_t first, int64_t count, int64_t row, int64_t rows, const float* sums) {
          kernels_->unpack_rows(sums, rows, count, accumulate,
                                y.As<float>() + row * y.row_stride + first, y.row_stride);
        });
  });
}

int64_t SparseOperand::ValuesOf(int64_t block, int64_t first_group, int64_t count) const {
  const int64_t item = block * groups() + first_group;
  const int64_t end = item + count == blocks() * groups()
                          ? values_listed_
                          : int64_t{Groups(block)[first_group + count].first_value};
  return end - Groups(block)[first_group].first_value;
}

// Panels of rows over one block of columns, whose sums stay in a thread's second-level cache while
// all tiles are added to them.
void SparseOperand::SampleTiles(const float* lines, const float* rows, int64_t count,
                                int64_t first_row, bool accumulate, const TensorView& y) const {
  const int64_t tile = kernels_->tile, lanes = kernels_->lanes, all = y.shape[0] / 4;
  const int64_t bytes_of_group =
      Parts(values_listed_, blocks() * groups()) * lanes * static_cast<int64_t>(sizeof(float));
  const int64_t fit = kPanelBytes / std::max<int64_t>(bytes_of_group, 1);
  const int64_t shares = Parts(2 * Threads(), blocks());
  const int64_t panel = std::max<int64_t>(std::min(fit, Parts(all, shares)), 1);
  const int64_t panels = Parts(all, panel);
  ParallelForDynamic(blocks() * panels, [&](int64_t task) {
    const int64_t block = task / panels, begin = task % panels * panel;
    const int64_t here = std::min(panel, all - begin), group = first_row / 4 + begin;
    const int64_t values = ValuesOf(block, group, here);
    auto* sums = ThreadScratch<Sums, float>(values * lanes);
    std::fill_n(sums, values * lanes, 0.0f);
    const SparseBlock elements = Block(block, group, here);
    for (int64_t t = 0; t < count; ++t) {
      kernels_->sample(elements, lines + (t * columns_ + block * kernels_->depth) * tile,
                       rows + 4 * (t * all + begin) * tile, sums);
    }
    float* const corner = y.As<float>() + 4 * begin * y.row_stride + block * kernels_->depth;
    for (int64_t row = 0; row < 4 * here && !accumulate; ++row) {
      std::fill_n(corner + row * y.row_stride, DepthOf(block), 0.0f);
    }
    kernels_->unpack_sums(elements, sums, accumulate, corner, y.row_stride);
  });
}

Status SparseOperand::SampleProduct(const TensorView& x, const TensorView& dy, int64_t first_row,
                                    bool accumulate, const TensorView& y) const {
  const int64_t tile = kernels_->tile, tiles = Parts(x.shape[0], tile), rows = y.shape[0];
  const int64_t bytes_of_tile = (rows + columns_) * tile * static_cast<int64_t>(sizeof(float));
  const int64_t most =
      std::clamp<int64_t>(kPackedBytes / bytes_of_tile, 1, std::max<int64_t>(tiles, 1));
  AlignedMemory packed = AllocateAligned(static_cast<size_t>(most * bytes_of_tile));
  if (packed == nullptr) {
    return ExhaustedError("sparse matrix: no memory for " + std::to_string(most * bytes_of_tile) +
                          " bytes of packed gradients");
  }
  auto* const lines = static_cast<float*>(packed.get());
  float* const gradients = lines + most * columns_ * tile;
  for (int64_t first = 0; first < std::max<int64_t>(tiles, 1); first += most) {
    const int64_t count = std::min(most, tiles - first);
    WithFloatType(x.dtype, [&]<class T>() {
      const auto pack = kernels_->tiles.Of<T>().pack_columns;
      ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t line = (first + t) * tile, here = std::min(tile, x.shape[0] - line);
          pack(x.As<T>() + line * x.row_stride, x.row_stride, here, columns_,
               lines + t * columns_ * tile);
          pack(dy.As<T>() + line * dy.row_stride, dy.row_stride, here, rows,
               gradients + t * rows * tile);
        }
      });
    });
    SampleTiles(lines, gradients, count, first_row, accumulate || first > 0, y);
  }
  return OkStatus();
}

}  // namespace weft::kernels::cpu
