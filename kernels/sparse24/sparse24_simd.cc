#include "kernels/sparse24/sparse24_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Vectors of a tile: two rows of them, a line and two factors fit the 16 registers of AVX2, and
// their additions keep both multipliers busy.
constexpr int kVectors = 4;
constexpr int64_t kTile = int64_t{kVectors} * kLanes;

// 28 KiB of a tile, of a first-level cache of 32; wider vectors come with 48.
#if defined(__AVX512F__)
constexpr int64_t kDepth = 160;
#else
constexpr int64_t kDepth = 224;
#endif
static_assert(kDepth <= kMostSparseDepth);

// Part of a row of the result.
struct Row {
  VecF v[kVectors];
};

WEFT_INLINE Row LoadRow(const float* y, int row) {
  Row r;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) r.v[v] = Load(y + row * kTile + v * kLanes);
  return r;
}

WEFT_INLINE void StoreRow(const Row& r, float* y, int row) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) Store(y + row * kTile + v * kLanes, r.v[v]);
}

// Keeps a load from becoming one for each of its uses.
WEFT_INLINE void KeepInRegister([[maybe_unused]] VecF& v) {
#if defined(__x86_64__)
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#else
  asm("" : "+x"(v));
#endif
#endif
}

// The entries that are left.
struct Entries {
  const uint16_t* column;
  const float* value;
};

WEFT_INLINE void AddPairs(const float* x, int64_t count, Entries& entries, Row& first,
                          Row& second) {
  Row a = first, b = second;
  const uint16_t* column = entries.column;
  const uint16_t* end = column + count;
  const float* value = entries.value;
  for (; column != end; ++column, value += 2) {
    const float* line = x + *column * kTile;
    const VecF left = Set(value[0]), right = Set(value[1]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      VecF part = Load(line + v * kLanes);
      KeepInRegister(part);
      a.v[v] = Fma(left, part, a.v[v]);
      b.v[v] = Fma(right, part, b.v[v]);
    }
  }
  entries = {column, value};
  first = a;
  second = b;
}

// Two entries at a time, whose sums do not wait for each other.
void AddRow(const float* x, int64_t count, Entries& entries, float* y, int row) {
  Row a = LoadRow(y, row), b = {};
  const uint16_t* column = entries.column;
  const float* value = entries.value;
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const float* line = x + column[i] * kTile;
    const float* other = x + column[i + 1] * kTile;
    const VecF left = Set(value[i]), right = Set(value[i + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      a.v[v] = Fma(left, Load(line + v * kLanes), a.v[v]);
      b.v[v] = Fma(right, Load(other + v * kLanes), b.v[v]);
    }
  }
  if (i < count) {
    const float* line = x + column[i] * kTile;
    const VecF left = Set(value[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) a.v[v] = Fma(left, Load(line + v * kLanes), a.v[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) a.v[v] += b.v[v];
  StoreRow(a, y, row);
  entries = {column + count, value + count};
}

// In the order of kSparsePairs: one row stays, the other is changed for the next.
WEFT_INLINE void MultiplyGroup(const SparseGroup& group, Entries entries, const float* x,
                               float* y) {
  Row a = LoadRow(y, 2), b = LoadRow(y, 3);
  AddPairs(x, group.pairs[0], entries, a, b);
  StoreRow(a, y, 2);
  a = LoadRow(y, 1);
  AddPairs(x, group.pairs[1], entries, a, b);
  StoreRow(a, y, 1);
  a = LoadRow(y, 0);
  AddPairs(x, group.pairs[2], entries, a, b);
  StoreRow(b, y, 3);
  b = LoadRow(y, 1);
  AddPairs(x, group.pairs[3], entries, a, b);
  StoreRow(a, y, 0);
  a = LoadRow(y, 2);
  AddPairs(x, group.pairs[4], entries, b, a);
  StoreRow(b, y, 1);
  b = LoadRow(y, 0);
  AddPairs(x, group.pairs[5], entries, b, a);
  StoreRow(a, y, 2);
  StoreRow(b, y, 0);
  for (int row = 0; row < kRowLists; ++row) {
    if (group.rows[row] != 0) AddRow(x, group.rows[row], entries, y, row);
  }
}

// Cache lines of the entries of the next group that are fetched ahead.
constexpr int kFetchedLines = 4;

void Multiply(const SparseBlock& block, const float* x, float* y) {
  for (int64_t i = 0; i < block.count; ++i, y += 4 * kTile) {
    const SparseGroup& group = block.groups[i];
    if (i + 1 < block.count) {
      const SparseGroup& next = block.groups[i + 1];
      for (int line = 0; line < kFetchedLines; ++line) {
        __builtin_prefetch(reinterpret_cast<const char*>(block.columns + next.first_entry) +
                           64 * line);
        __builtin_prefetch(reinterpret_cast<const char*>(block.values + next.first_value) +
                           64 * line);
      }
    }
    MultiplyGroup(group, {block.columns + group.first_entry, block.values + group.first_value}, x,
                  y);
  }
}

WEFT_INLINE VecF AddProducts(VecF sum, const Row& a, const VecF* line) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum = Fma(a.v[v], line[v], sum);
  return sum;
}

// Sums of the entries of two rows, which stay in registers: for each entry, what the lanes of the
// tile add up to is added to its vector of sums.
WEFT_INLINE float* SamplePairs(const float* x, const float* y, SparsePair rows,
                               const uint16_t* column, int64_t count, float* sums) {
  if (count == 0) return sums;
  const Row a = LoadRow(y, rows.first), b = LoadRow(y, rows.second);
  for (const uint16_t* const end = column + count; column != end; ++column, sums += 2 * kLanes) {
    const float* from = x + *column * kTile;
    VecF line[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      line[v] = Load(from + v * kLanes);
      KeepInRegister(line[v]);
    }
    Store(sums, AddProducts(Load(sums), a, line));
    Store(sums + kLanes, AddProducts(Load(sums + kLanes), b, line));
  }
  return sums;
}

WEFT_INLINE float* SampleRow(const float* x, const float* y, int row, const uint16_t* column,
                             int64_t count, float* sums) {
  if (count == 0) return sums;
  const Row a = LoadRow(y, row);
  for (const uint16_t* const end = column + count; column != end; ++column, sums += kLanes) {
    const float* from = x + *column * kTile;
    VecF line[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) line[v] = Load(from + v * kLanes);
    Store(sums, AddProducts(Load(sums), a, line));
  }
  return sums;
}

void Sample(const SparseBlock& block, const float* x, const float* y, float* sums) {
  for (int64_t i = 0; i < block.count; ++i, y += 4 * kTile) {
    const SparseGroup& group = block.groups[i];
    const uint16_t* column = block.columns + group.first_entry;
    for (int list = 0; list < kPairLists; column += group.pairs[list++]) {
      sums = SamplePairs(x, y, kSparsePairs[list], column, group.pairs[list], sums);
    }
    for (int row = 0; row < kRowLists; column += group.rows[row++]) {
      sums = SampleRow(x, y, row, column, group.rows[row], sums);
    }
  }
}

void UnpackSums(const SparseBlock& block, const float* sums, bool accumulate, float* to,
                int64_t stride) {
  const auto take = [&](int row, uint16_t column) {
    float& element = to[row * stride + column];
    element = ReduceAdd(Load(sums)) + (accumulate ? element : 0.0f);
    sums += kLanes;
  };
  for (int64_t i = 0; i < block.count; ++i, to += 4 * stride) {
    const SparseGroup& group = block.groups[i];
    const uint16_t* column = block.columns + group.first_entry;
    for (int list = 0; list < kPairLists; ++list) {
      for (int n = 0; n < group.pairs[list]; ++n, ++column) {
        take(kSparsePairs[list].first, *column);
        take(kSparsePairs[list].second, *column);
      }
    }
    for (int row = 0; row < kRowLists; ++row) {
      for (int n = 0; n < group.rows[row]; ++n) take(row, *column++);
    }
  }
}

typedef float Quad __attribute__((vector_size(16)));

WEFT_INLINE Quad LoadQuad(const float* from) {
  Quad q;
  __builtin_memcpy(&q, from, sizeof q);
  return q;
}
WEFT_INLINE void StoreQuad(float* to, Quad q) {
  __builtin_memcpy(static_cast<void*>(to), &q, sizeof q);
}

// Transposes 4 x 4 numbers.
WEFT_INLINE void TransposeQuads(const float* from, int64_t stride, float* to, int64_t to_stride) {
  const Quad r0 = LoadQuad(from), r1 = LoadQuad(from + stride);
  const Quad r2 = LoadQuad(from + 2 * stride), r3 = LoadQuad(from + 3 * stride);
  const Quad a = __builtin_shufflevector(r0, r2, 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(r1, r3, 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(r0, r2, 2, 6, 3, 7);
  const Quad d = __builtin_shufflevector(r1, r3, 2, 6, 3, 7);
  StoreQuad(to, __builtin_shufflevector(a, b, 0, 4, 1, 5));
  StoreQuad(to + to_stride, __builtin_shufflevector(a, b, 2, 6, 3, 7));
  StoreQuad(to + 2 * to_stride, __builtin_shufflevector(c, d, 0, 4, 1, 5));
  StoreQuad(to + 3 * to_stride, __builtin_shufflevector(c, d, 2, 6, 3, 7));
}

// Numbers of a row that are widened or transposed at a time.
constexpr int64_t kStrip = 256;

WEFT_INLINE int64_t Least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Widens `count` numbers to f32.
template <class T>
WEFT_INLINE void Widen(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(to + i, Load(from + i));
  if (i < count) StorePart(to + i, LoadPart(from + i, count - i), count - i);
}

template <class T>
void PackColumns(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  float strip[4][kStrip];
  for (int64_t first = 0; first < columns; first += kStrip) {
    const int64_t here = Least(columns - first, kStrip);
    float* tile = to + first * kTile;
    for (int64_t row = 0; row < kTile; row += 4) {
      if (row >= rows) {
        for (int64_t c = 0; c < here; ++c) StoreQuad(tile + c * kTile + row, Quad{});
        continue;
      }
      for (int64_t r = 0; r < 4; ++r) {
        if (row + r < rows) {
          Widen(from + (row + r) * stride + first, here, strip[r]);
        } else {
          for (int64_t c = 0; c < here; ++c) strip[r][c] = 0.0f;
        }
      }
      int64_t c = 0;
      for (; c + 4 <= here; c += 4) {
        TransposeQuads(strip[0] + c, kStrip, tile + c * kTile + row, kTile);
      }
      for (; c < here; ++c) {
        for (int64_t r = 0; r < 4; ++r) tile[c * kTile + row + r] = strip[r][c];
      }
    }
  }
}

template <class T>
void PackRows(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += kTile) {
    if (columns >= kTile) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Store(to + v * kLanes, Load(from + v * kLanes));
      continue;
    }
    Widen(from, columns, to);
    for (int64_t c = columns; c < kTile; ++c) to[c] = 0.0f;
  }
}

template <class T>
void UnpackColumns(const float* from, int64_t rows, int64_t columns, const float* bias, T* to,
                   int64_t stride) {
  float strip[4][kStrip];
  for (int64_t first = 0; first < columns; first += kStrip) {
    const int64_t here = Least(columns - first, kStrip);
    const float* tile = from + first * kTile;
    for (int64_t row = 0; row < rows; row += 4) {
      int64_t c = 0;
      for (; c + 4 <= here; c += 4) {
        TransposeQuads(tile + c * kTile + row, kTile, strip[0] + c, kStrip);
      }
      for (; c < here; ++c) {
        for (int64_t r = 0; r < 4; ++r) strip[r][c] = tile[c * kTile + row + r];
      }
      for (int64_t r = 0; r < 4 && row + r < rows; ++r) {
        T* line = to + (row + r) * stride + first;
        for (c = 0; c < here; c += kLanes) {
          VecF v = LoadUpTo(strip[r] + c, here - c);
          if (bias != nullptr) v += LoadUpTo(bias + first + c, here - c);
          StoreUpTo(line + c, v, here - c);
        }
      }
    }
  }
}

void UnpackRows(const float* from, int64_t rows, int64_t columns, bool accumulate, float* to,
                int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, from += kTile, to += stride) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      VecF v = Load(from + c);
      if (accumulate) v += LoadUpTo(to + c, columns - c);
      StoreUpTo(to + c, v, columns - c);
    }
  }
}

// Which of four numbers are not 0, a bit each.
WEFT_INLINE int CodeOf(const float* from) {
#if defined(__x86_64__)
  return _mm_movemask_ps(_mm_cmpneq_ps(_mm_loadu_ps(from), _mm_setzero_ps()));
#else
  return (from[0] != 0.0f) | (from[1] != 0.0f) << 1 | (from[2] != 0.0f) << 2 |
         (from[3] != 0.0f) << 3;
#endif
}

// Counts first, so that each entry goes to its place at once. Only a column of four elements takes
// a branch: which list is next cannot be predicted. What belongs to no list is written behind the
// last entry.
void ListColumns(const float* from, int64_t stride, int64_t rows, SparseGroup& group,
                 uint16_t* entries, float* values) {
  uint8_t codes[kMostSparseDepth];
  // Neighbouring columns are counted apart: equal codes in turn would wait for each other.
  uint16_t counts[2][16] = {};
  for (int64_t column = 0; column < rows; ++column) {
    codes[column] = static_cast<uint8_t>(CodeOf(from + column * stride));
    ++counts[column & 1][codes[column]];
  }
  uint32_t pairs[kPairLists + 1] = {}, singles[kRowLists + 1] = {};
  for (int code = 0; code < 16; ++code) {
    const SparseCode& lists = kSparseCodes.of[code];
    const uint32_t count = counts[0][code] + uint32_t{counts[1][code]};
    pairs[lists.pair] += count;
    pairs[lists.other_pair] += count;
    singles[lists.row] += count;
  }
  // Each becomes the next entry of its list.
  uint32_t next = 0;
  for (int list = 0; list < kPairLists; ++list) {
    group.pairs[list] = static_cast<uint16_t>(pairs[list]);
    next += pairs[list];
    pairs[list] = next - pairs[list];
  }
  const uint32_t all_pairs = next;
  for (int row = 0; row < kRowLists; ++row) {
    group.rows[row] = static_cast<uint16_t>(singles[row]);
    next += singles[row];
    singles[row] = next - singles[row];
  }
  const auto add_pair = [&](uint8_t list, int64_t column, const float* line, SparsePair rows_of) {
    const uint32_t at = pairs[list]++;
    entries[at] = static_cast<uint16_t>(column);
    values[2 * at] = line[rows_of.first];
    values[2 * at + 1] = line[rows_of.second];
  };
  for (int64_t column = 0; column < rows; ++column, from += stride) {
    const SparseCode& code = kSparseCodes.of[codes[column]];
    pairs[kPairLists] = singles[kRowLists] = next;
    add_pair(code.pair, column, from, code.rows);
    const uint32_t at = singles[code.row]++;
    entries[at] = static_cast<uint16_t>(column);
    values[all_pairs + at] = from[code.element];
    if (code.other_pair < kPairLists) {
      add_pair(code.other_pair, column, from, kSparsePairs[code.other_pair]);
    }
  }
}

template <class T>
constexpr SparseTiles<T> kTilesOf = {
    .pack_columns = PackColumns<T>, .pack_rows = PackRows<T>, .unpack_columns = UnpackColumns<T>};

}  // namespace

const SparseKernels kSparseKernels = {
    .tile = kTile,
    .depth = kDepth,
    .lanes = kLanes,
    .multiply = Multiply,
    .sample = Sample,
    .unpack_sums = UnpackSums,
    .unpack_rows = UnpackRows,
    .list_columns = ListColumns,
    .tiles = {.f32 = kTilesOf<float>, .bf16 = kTilesOf<BFloat16>, .f16 = kTilesOf<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
