#pragma once

#include "kernels/attention/attention_math.h"
#include "kernels/attention/attention_simd.h"

/// FlashAttention (Dao et al. 2022, arXiv 2205.14135; Dao 2023, arXiv 2307.08691) over tiles of
/// 64 keys x 64 queries. Scores are kept transposed, a row a key: then maximum, sum and rescaling
/// work on whole vectors of queries, and probabilities come out as the panels that the next
/// products read. This file has what the two directions share.
namespace weft::kernels::cpu::WEFT_ISA {

inline constexpr int64_t kTile = 64;
/// Row stride of span-wide matrices: off the power of two, so that rows spread over cache sets.
inline constexpr int64_t kSpanStride = kAttentionSpan + 16;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;

WEFT_INLINE int64_t Smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
WEFT_INLINE int64_t Larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

template <class Math>
WEFT_INLINE int64_t Padded(int64_t size) {
  return (size + Math::kMultiple - 1) / Math::kMultiple * Math::kMultiple;
}

/// Hands out parts of the scratch memory; with no memory it only counts.
struct ScratchCarver {
  unsigned char* base;
  int64_t used = 0;

  template <class T>
  WEFT_INLINE T* Take(int64_t count) {
    T* part = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return part;
  }
};

/// Row `token` of a head's columns.
template <class T>
WEFT_INLINE T* HeadRow(const TokenRows& rows, int64_t token, int64_t head, int64_t head_dim) {
  return static_cast<T*>(rows.data) + token * rows.stride + head * head_dim;
}

/// Copies `rows` x `columns` as Math::Element into a dense matrix with rows of Padded(columns),
/// with zero in the padding and in the rows up to Padded(rows).
template <class Math, class T>
void CopyRows(const T* from, int64_t stride, int64_t rows, int64_t columns,
              typename Math::Element* to) {
  int64_t width = Padded<Math>(columns);
  for (int64_t r = 0; r < rows; ++r, from += stride, to += width) {
    if constexpr (sizeof(T) == sizeof(typename Math::Element)) {
      __builtin_memcpy(static_cast<void*>(to), from, static_cast<size_t>(columns) * sizeof(T));
      __builtin_memset(static_cast<void*>(to + columns), 0,
                       static_cast<size_t>(width - columns) * sizeof(T));
    } else {
      int64_t c = 0;
      for (; c + kLanes <= columns; c += kLanes) Store(to + c, Load(from + c));
      if (c < columns) Store(to + c, LoadPart(from + c, columns - c));
      for (c = (columns + kLanes - 1) / kLanes * kLanes; c < width; c += kLanes) {
        Store(to + c, VecF{});
      }
    }
  }
  __builtin_memset(
      static_cast<void*>(to), 0,
      static_cast<size_t>((Padded<Math>(rows) - rows) * width) * sizeof(typename Math::Element));
}

/// Rows of padded elements as a right-hand panel whose shared dimension is the row. `panel` may not
/// be `rows_of`; both are dense.
template <class Math>
void PairRows(const typename Math::Element* rows_of, int64_t rows, int64_t width,
              typename Math::Element* panel) {
  if constexpr (Math::kPair == 1) {
    __builtin_memcpy(panel, rows_of, static_cast<size_t>(rows * width) * sizeof(float));
  } else {
    for (int64_t r = 0; r < rows; r += 2) {
      for (int64_t c = 0; c < width; c += kLanes) {
        VecH even, odd;
        __builtin_memcpy(&even, rows_of + r * width + c, sizeof even);
        __builtin_memcpy(&odd, rows_of + (r + 1) * width + c, sizeof odd);
        VecU pairs = __builtin_convertvector(even, VecU) | __builtin_convertvector(odd, VecU) << 16;
        __builtin_memcpy(static_cast<void*>(panel + r * width + c * 2), &pairs, sizeof pairs);
      }
    }
  }
}

/// Rows of padded elements as a right-hand panel whose shared dimension is the column; `stride` is
/// the panel's count of columns.
template <class Math>
WEFT_INLINE void ColumnPanel(const typename Math::Element* rows_of, int64_t rows, int64_t width,
                             typename Math::Element* panel, int64_t stride) {
  TransposeWords(reinterpret_cast<const float*>(rows_of), width / Math::kPair, rows,
                 width / Math::kPair, reinterpret_cast<float*>(panel), stride);
}

/// to[c][r] = rows_of[r][c], rows of `to` kTile apart. `pairs` is room for rows x width.
template <class Math>
WEFT_INLINE void TransposeRows(const typename Math::Element* rows_of, int64_t rows, int64_t width,
                               typename Math::Element* pairs, typename Math::Element* to) {
  if constexpr (Math::kPair == 1) {
    TransposeWords(rows_of, width, rows, width, to, kTile);
  } else {
    PairRows<Math>(rows_of, rows, width, pairs);
    TransposeWords(reinterpret_cast<const float*>(pairs), width, rows / 2, width,
                   reinterpret_cast<float*>(to), kTile / 2);
  }
}

/// First key, at the border of a tile, that the query or one after it sees.
WEFT_INLINE int64_t FirstKey(const AttentionWork& work, int64_t query) {
  int64_t first = query + 1 - work.window;
  return first > 0 ? first / kTile * kTile : 0;
}

/// Whether the tile from `key` and `query` on holds scores of its `keys` keys (`rows` with padding)
/// that must not be seen.
WEFT_INLINE bool IsMasked(const AttentionWork& work, int64_t keys, int64_t rows, int64_t key,
                          int64_t query) {
  return keys < rows || (work.causal && (key + kTile > query || key + work.window < query + kTile));
}

/// The scores of a tile that are looked at: all, or on the diagonal of causal attention, where row
/// 0 and column 0 are the same token, those of squares of kStep that hold one which is seen.
template <class Math>
struct SeenPart {
  static constexpr int64_t kStep = Math::kMultiple;

  int64_t rows;
  int64_t columns;
  bool diagonal;

  /// Rows from the first on that the squares around column `c` have.
  WEFT_INLINE int64_t RowsOf(int64_t c) const {
    return diagonal ? Smaller(rows, c / kStep * kStep + kStep) : rows;
  }

  /// Calls fn(first column, columns, rows): the tile as few as possible full rectangles.
  template <class Fn>
  WEFT_INLINE void ByColumns(Fn&& fn) const {
    const int64_t step = diagonal ? kStep : columns;
    for (int64_t c = 0; c < columns; c += step) fn(c, step, RowsOf(c));
  }

  /// Calls fn(first row, rows, first column that is looked at): the same, row by row.
  template <class Fn>
  WEFT_INLINE void ByRows(Fn&& fn) const {
    const int64_t step = diagonal ? kStep : rows;
    for (int64_t r = 0; r < rows; r += step) {
      const int64_t first = diagonal ? r : 0;
      if (first < columns) fn(r, step, first);
    }
  }
};

/// Overwrites the scores that must not be seen: rows of keys from `keys` on, and, when causal, keys
/// after the query or before its window. Row and column 0 are key `key` and query `query`.
WEFT_INLINE void MaskScores(const AttentionWork& work, float* scores, int64_t rows, int64_t columns,
                            int64_t keys, int64_t key, int64_t query) {
  constexpr float kHidden = -__builtin_inff();
  // A query may see no key of the first tile that others see. A finite value then gives weights
  // that the next tile scales to zero, where infinities would give NaN; a power of two, so that its
  // product with the scale is exact.
  constexpr float kBeforeWindow = -0x1.0p100f;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t hidden = r >= keys ? columns : work.causal ? Smaller(key + r - query, columns) : 0;
    float* row = scores + r * kTile;
    int64_t c = 0;
    for (; c + kLanes <= hidden; c += kLanes) Store(row + c, Set(kHidden));
    for (; c < hidden; ++c) row[c] = kHidden;
    if (!work.causal || r >= keys) continue;
    c = key + r + work.window - query;
    for (c = c > 0 ? c : 0; c < columns; ++c) row[c] = kBeforeWindow;
  }
}

/// Writes factor * to[r][c] = from[c][r]: `from` is [Padded(columns)][>= Padded(rows)] of f32, `to`
/// is head columns of token rows. With `factors`, one for each row.
template <class Math, class T>
void StoreTransposed(const float* from, int64_t from_stride, const float* factors, int64_t rows,
                     int64_t columns, T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    VecF factor = Load(factors + r);
    for (int64_t c = 0; c < columns; c += kLanes) {
      VecF block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = Load(from + (c + i) * from_stride + r) * factor;
      Transpose(block);
      if (r + kLanes <= rows && c + kLanes <= columns) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) Math::StoreRow(to + (r + i) * to_stride + c, block[i]);
      } else {
        for (int i = 0; i < kLanes && r + i < rows; ++i) {
          StorePart(to + (r + i) * to_stride + c, block[i], Smaller(columns - c, kLanes));
        }
      }
    }
  }
}

}  // namespace weft::kernels::cpu::WEFT_ISA
