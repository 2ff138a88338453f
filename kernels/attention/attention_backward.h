#pragma once

#include "kernels/attention/attention_drop_simd.h"
#include "kernels/attention/attention_tiles.h"

namespace weft::kernels::cpu::WEFT_ISA {

template <class Math>
struct BackwardScratch {
  using Element = typename Math::Element;

  BackwardScratch(unsigned char* memory, int64_t head_dim, int64_t keys) {
    ScratchCarver carver{memory};
    int64_t width = Padded<Math>(head_dim);
    key_rows = carver.Take<Element>(kTile * width);
    value_rows = carver.Take<Element>(kTile * width);
    pairs = carver.Take<Element>(kTile * width);
    keys_transposed = carver.Take<Element>(kTile * width);
    q_columns = carver.Take<Element>(kSpanStride * width);
    q_pairs = carver.Take<Element>(kAttentionSpan * width);
    dout_columns = carver.Take<Element>(kSpanStride * width);
    dout_pairs = carver.Take<Element>(kAttentionSpan * width);
    scores = carver.Take<float>(kTile * kTile);
    dprobabilities = carver.Take<float>(kTile * kTile);
    p_rows = carver.Take<Element>(kTile * kTile);
    ds_rows = carver.Take<Element>(kTile * kTile);
    ds_pairs = Math::kPair == 1 ? ds_rows : carver.Take<Element>(kTile * kTile);
    log_sum = carver.Take<float>(kAttentionSpan);
    row_dot = carver.Take<float>(kAttentionSpan);
    scales = carver.Take<float>(kAttentionSpan);
    dq = carver.Take<float>(kSpanStride * width);
    dk = carver.Take<float>(Padded<Math>(keys) * width);
    dv = carver.Take<float>(Padded<Math>(keys) * width);
    size = carver.used;
  }

  Element* key_rows;         ///< [kTile][width]
  Element* value_rows;       ///< [kTile][width]
  Element* pairs;            ///< [kTile / kPair][width][kPair]
  Element* keys_transposed;  ///< [width][kTile]
  Element* q_columns;        ///< [width / kPair][kSpanStride][kPair]
  Element* q_pairs;          ///< [kAttentionSpan / kPair][width][kPair]
  Element* dout_columns;     ///< like q_columns
  Element* dout_pairs;       ///< like q_pairs
  float* scores;             ///< [kTile keys][kTile queries]
  float* dprobabilities;     ///< [kTile keys][kTile queries]
  Element* p_rows;           ///< [kTile keys][kTile queries]
  Element* ds_rows;          ///< [kTile keys][kTile queries]
  Element* ds_pairs;         ///< [kTile / kPair][kTile][kPair]
  float* log_sum;            ///< [kAttentionSpan] log2 of the softmax denominators
  float* row_dot;            ///< [kAttentionSpan] sum of dout * out, times the share that is kept
  float* scales;             ///< [kAttentionSpan] the scale of dq, over and over
  float* dq;                 ///< [width][kSpanStride], transposed and not yet scaled
  float* dk;                 ///< [keys][width], not yet scaled
  float* dv;                 ///< [keys][width]
  int64_t size;
};

/// Sum over columns of a * b for each of `rows` rows; zero up to Padded(rows).
template <class Math, class T>
void RowDots(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows,
             int64_t columns, float* dots) {
  for (int64_t r = 0; r < Padded<Math>(rows); r += kLanes) {
    VecF partial[kLanes] = {};
    for (int i = 0; i < kLanes && r + i < rows; ++i) {
      const T* left = a + (r + i) * a_stride;
      const T* right = b + (r + i) * b_stride;
      int64_t c = 0;
      VecF sum{};
      for (; c + kLanes <= columns; c += kLanes) sum = Fma(Load(left + c), Load(right + c), sum);
      if (c < columns) {
        sum = Fma(LoadPart(left + c, columns - c), LoadPart(right + c, columns - c), sum);
      }
      partial[i] = sum;
    }
    Transpose(partial);
    VecF sum = partial[0];
    for (int i = 1; i < kLanes; ++i) sum += partial[i];
    Store(dots + r, sum);
  }
}

/// From scores and dprobabilities (dP = V dout^T): P = 2^(factor * score - log_sum) and
/// dS = P (dP - row_dot), in the layouts that the gradient products read. Of P, but not of the
/// factor of dS, and of dP the dropped are zero; division by the share that is kept is left to the
/// sums.
template <class Math, class Dropout>
WEFT_INLINE void GradientTile(const BackwardScratch<Math>& scratch, const SeenPart<Math>& seen,
                              float factor, int64_t query, Dropout dropout) {
  constexpr int kPair = Math::kPair;
  for (int64_t c = 0; c < seen.columns; c += kLanes) {
    const int64_t rows = seen.RowsOf(c);
    VecF base = -Load(scratch.log_sum + query + c);
    VecF dot = Load(scratch.row_dot + query + c);
    VecF scale = Set(factor);
    dropout.BeginColumns(c);
    for (int64_t r = 0; r < rows; r += 2) {
      dropout.NextTwoRows(r);
      int64_t at = r * kTile + c;
      VecF p0 = Exp2<Math::kExpDegree>(Fma(Load(scratch.scores + at), scale, base));
      VecF p1 = Exp2<Math::kExpDegree>(Fma(Load(scratch.scores + at + kTile), scale, base));
      VecF ds0 = p0 * (dropout.Even(Load(scratch.dprobabilities + at)) - dot);
      VecF ds1 = p1 * (dropout.Odd(Load(scratch.dprobabilities + at + kTile)) - dot);
      Math::StoreRow(scratch.p_rows + at, dropout.Even(p0));
      Math::StoreRow(scratch.p_rows + at + kTile, dropout.Odd(p1));
      Math::StoreRow(scratch.ds_rows + at, ds0);
      Math::StoreRow(scratch.ds_rows + at + kTile, ds1);
      if constexpr (kPair > 1) {
        Math::StorePair(scratch.ds_pairs + c * kPair, kTile * kPair, r, ds0, ds1);
      }
    }
  }
}

template <class Math>
int64_t BackwardScratchSize(int64_t head_dim, int64_t keys) {
  return BackwardScratch<Math>(nullptr, head_dim, keys).size;
}

/// What a span of queries needs for all keys: q and dout in both layouts, statistics of the rows.
template <class Math, class T>
void LoadQuerySpan(const AttentionWork& work, int64_t head, int64_t first_token, int64_t count,
                   const BackwardScratch<Math>& scratch) {
  const int64_t width = Padded<Math>(work.head_dim);
  for (int64_t query = 0; query < count; query += kTile) {
    int64_t token = first_token + query;
    int64_t queries = Smaller(kTile, count - query), columns = Padded<Math>(queries);
    const T* dout = HeadRow<const T>(work.dout, token, head, work.head_dim);
    CopyRows<Math>(HeadRow<const T>(work.q, token, head, work.head_dim), work.q.stride, queries,
                   work.head_dim, scratch.key_rows);
    ColumnPanel<Math>(scratch.key_rows, columns, width, scratch.q_columns + query * Math::kPair,
                      kSpanStride);
    PairRows<Math>(scratch.key_rows, columns, width, scratch.q_pairs + query * width);
    CopyRows<Math>(dout, work.dout.stride, queries, work.head_dim, scratch.key_rows);
    ColumnPanel<Math>(scratch.key_rows, columns, width, scratch.dout_columns + query * Math::kPair,
                      kSpanStride);
    PairRows<Math>(scratch.key_rows, columns, width, scratch.dout_pairs + query * width);
    RowDots<Math>(dout, work.dout.stride, HeadRow<const T>(work.out, token, head, work.head_dim),
                  work.out.stride, queries, work.head_dim, scratch.row_dot + query);
    const float* log_sum_exp = work.log_sum_exp + head * work.tokens + token;
    for (int64_t i = 0; i < columns; ++i) {
      scratch.row_dot[query + i] *= work.dropout.kept;
      // Infinity makes the probabilities of padding zero.
      scratch.log_sum[query + i] = i < queries ? log_sum_exp[i] * kLog2E : __builtin_inff();
    }
  }
}

/// Writes factor * from, a dense [rows][width] of f32, to head columns of token rows.
template <class Math, class T>
void StoreScaled(const float* from, int64_t width, float factor, int64_t rows, int64_t columns,
                 T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += width, to += to_stride) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) Math::StoreRow(to + c, Load(from + c) * factor);
    if (c < columns) StorePart(to + c, Load(from + c) * factor, columns - c);
  }
}

/// Gradients of the item's queries, of its keys, or of both. A sum is always taken in the same
/// order (dq by keys; dk and dv by heads, then queries), however work is cut into items.
template <class Math, class T>
void AttentionBackwardItem(const AttentionWork& work, const AttentionItem& item,
                           unsigned char* memory) {
  constexpr int kPair = Math::kPair;
  const int64_t all_keys = item.key_end - item.key_begin;
  const BackwardScratch<Math> scratch(memory, work.head_dim, item.key_gradient ? all_keys : 0);
  const int64_t width = Padded<Math>(work.head_dim);
  const float factor = work.scale * kLog2E, gradient_scale = work.scale / work.dropout.kept;
  for (int64_t i = 0; i < kAttentionSpan; ++i) scratch.scales[i] = gradient_scale;
  if (item.key_gradient) {
    size_t bytes = static_cast<size_t>(Padded<Math>(all_keys) * width) * sizeof(float);
    __builtin_memset(scratch.dk, 0, bytes);
    __builtin_memset(scratch.dv, 0, bytes);
  }
  Math::Begin();
  for (int64_t head = item.head_begin; head < item.head_end; ++head) {
    for (int64_t span = item.query_begin; span < item.query_end; span += kAttentionSpan) {
      const int64_t count = Smaller(kAttentionSpan, item.query_end - span);
      LoadQuerySpan<Math, T>(work, head, item.sequence_begin + span, count, scratch);
      const int64_t last_key = work.causal ? Smaller(item.key_end, span + count) : item.key_end;
      const int64_t first_key = Larger(item.key_begin, FirstKey(work, span));
      for (int64_t key = first_key; key < last_key; key += kTile) {
        int64_t keys = Smaller(kTile, item.key_end - key), rows = Padded<Math>(keys);
        int64_t token = item.sequence_begin + key;
        CopyRows<Math>(HeadRow<const T>(work.v, token, item.kv_head, work.head_dim), work.v.stride,
                       keys, work.head_dim, scratch.value_rows);
        CopyRows<Math>(HeadRow<const T>(work.k, token, item.kv_head, work.head_dim), work.k.stride,
                       keys, work.head_dim, scratch.key_rows);
        if (item.query_gradient) {
          TransposeRows<Math>(scratch.key_rows, rows, width, scratch.pairs,
                              scratch.keys_transposed);
        }
        for (int64_t query = 0; query < count; query += kTile) {
          int64_t columns = Padded<Math>(Smaller(kTile, count - query));
          const int64_t first = FirstKey(work, span + query);
          if (work.causal && (key >= span + query + kTile || key < first)) continue;
          const SeenPart<Math> seen{rows, columns, work.causal && key == span + query};
          seen.ByColumns([&](int64_t c, int64_t some, int64_t seen_rows) {
            const int64_t column = (query + c) * kPair;
            Math::Multiply(scratch.key_rows, width, scratch.q_columns + column, kSpanStride * kPair,
                           scratch.scores + c, kTile, seen_rows, some, width, false);
            Math::Multiply(scratch.value_rows, width, scratch.dout_columns + column,
                           kSpanStride * kPair, scratch.dprobabilities + c, kTile, seen_rows, some,
                           width, false);
          });
          if (IsMasked(work, keys, rows, key, span + query)) {
            MaskScores(work, scratch.scores, rows, columns, keys, key, span + query);
          }
          WithDropout(work, head, item.sequence_begin + span + query, key,
                      [&](const auto& dropout) {
                        GradientTile<Math>(scratch, seen, factor, query, dropout);
                      });
          if (item.key_gradient) {
            seen.ByRows([&](int64_t r, int64_t some, int64_t c) {
              const int64_t at = (key - item.key_begin + r) * width, from = r * kTile + c;
              const int64_t row = (query + c) * width;
              Math::Multiply(scratch.p_rows + from, kTile, scratch.dout_pairs + row, width * kPair,
                             scratch.dv + at, width, some, width, columns - c, true);
              Math::Multiply(scratch.ds_rows + from, kTile, scratch.q_pairs + row, width * kPair,
                             scratch.dk + at, width, some, width, columns - c, true);
            });
          }
          if (item.query_gradient) {
            seen.ByColumns([&](int64_t c, int64_t some, int64_t seen_rows) {
              Math::Multiply(scratch.keys_transposed, kTile, scratch.ds_pairs + c * kPair,
                             kTile * kPair, scratch.dq + query + c, kSpanStride, width, some,
                             seen_rows, key > first);
            });
          }
        }
      }
      if (item.query_gradient) {
        StoreTransposed<Math>(scratch.dq, kSpanStride, scratch.scales, count, work.head_dim,
                              HeadRow<T>(work.dq, item.sequence_begin + span, head, work.head_dim),
                              work.dq.stride);
      }
    }
  }
  Math::End();
  if (item.key_gradient) {
    int64_t token = item.sequence_begin + item.key_begin;
    StoreScaled<Math>(scratch.dk, width, gradient_scale, all_keys, work.head_dim,
                      HeadRow<T>(work.dk, token, item.kv_head, work.head_dim), work.dk.stride);
    StoreScaled<Math>(scratch.dv, width, 1.0f / work.dropout.kept, all_keys, work.head_dim,
                      HeadRow<T>(work.dv, token, item.kv_head, work.head_dim), work.dv.stride);
  }
}

}  // namespace weft::kernels::cpu::WEFT_ISA
