#pragma once

#include "kernels/attention/attention_drop_simd.h"
#include "kernels/attention/attention_tiles.h"

namespace weft::kernels::cpu::WEFT_ISA {

template <class Math>
struct ForwardScratch {
  using Element = typename Math::Element;

  ForwardScratch(unsigned char* memory, int64_t head_dim) {
    ScratchCarver carver{memory};
    int64_t width = Padded<Math>(head_dim);
    rows = carver.Take<Element>(kTile * width);
    pairs = carver.Take<Element>(kTile * width);
    values = carver.Take<Element>(kTile * width);
    queries = carver.Take<Element>(kSpanStride * width);
    scores = carver.Take<float>(kTile * kTile);
    probabilities = carver.Take<Element>(kTile * kTile);
    sums = carver.Take<float>(kSpanStride * width);
    max = carver.Take<float>(kAttentionSpan);
    total = carver.Take<float>(kAttentionSpan);
    size = carver.used;
  }

  Element* rows;           ///< [kTile][width] keys, before that queries and values
  Element* pairs;          ///< [kTile / kPair][width][kPair]
  Element* values;         ///< [width][kTile], transposed
  Element* queries;        ///< [width / kPair][kSpanStride][kPair]
  float* scores;           ///< [kTile keys][kTile queries]
  Element* probabilities;  ///< [kTile / kPair][kTile][kPair]
  float* sums;             ///< [width][kSpanStride], out transposed and not yet divided by total
  float* max;              ///< [kAttentionSpan] what exponents are taken against, in bits
  float* total;            ///< [kAttentionSpan] sum of probabilities
  int64_t size;
};

/// Turns a tile of scores into probabilities 2^(factor * score - max), with max and total of each
/// query kept up to date and its running sums rescaled when max moves. Those that `dropout` drops
/// count in total.
template <class Math, class Dropout>
WEFT_INLINE void SoftmaxTile(const float* scores, const SeenPart<Math>& seen, float factor,
                             bool first, float* max, float* total, float* sums, int64_t width,
                             typename Math::Element* probabilities, Dropout dropout) {
  // Any value near the maximum serves, so it moves only when the excess would cost range: values
  // up to 2^8 lose nothing in bf16 or f32, and rescaling of the sums becomes rare.
  constexpr float kSlack = 8;
  for (int64_t c = 0; c < seen.columns; c += kLanes) {
    const int64_t rows = seen.RowsOf(c);
    VecF even = Load(scores + c), odd = Load(scores + kTile + c);
    for (int64_t r = 2; r < rows; r += 2) {
      even = Max(even, Load(scores + r * kTile + c));
      odd = Max(odd, Load(scores + (r + 1) * kTile + c));
    }
    VecF top = Max(even, odd) * factor;
    VecF base = top;
    VecF sum{};
    if (!first) {
      VecF old = Load(max + c);
      VecI moved = top > old + kSlack;
      base = moved ? top : old;
      sum = Load(total + c);
      if (AnyLane(moved)) {
        VecF shrink = Exp2<5>(old - base);
        sum *= shrink;
        for (int64_t d = 0; d < width; ++d) {
          float* at = sums + d * kSpanStride + c;
          Store(at, Load(at) * shrink);
        }
      }
    }
    VecF scale = Set(factor);
    dropout.BeginColumns(c);
    for (int64_t r = 0; r < rows; r += 2) {
      dropout.NextTwoRows(r);
      VecF p0 = Exp2<Math::kExpDegree>(Fma(Load(scores + r * kTile + c), scale, -base));
      VecF p1 = Exp2<Math::kExpDegree>(Fma(Load(scores + (r + 1) * kTile + c), scale, -base));
      sum += p0 + p1;
      Math::StorePair(probabilities + c * Math::kPair, kTile * Math::kPair, r, dropout.Even(p0),
                      dropout.Odd(p1));
    }
    Store(max + c, base);
    Store(total + c, sum);
  }
}

template <class Math>
int64_t ForwardScratchSize(int64_t head_dim) {
  return ForwardScratch<Math>(nullptr, head_dim).size;
}

/// Queries [query_begin, query_end) of the item's heads, at most a span of them.
template <class Math, class T>
void AttentionForwardItem(const AttentionWork& work, const AttentionItem& item,
                          unsigned char* memory) {
  const ForwardScratch<Math> scratch(memory, work.head_dim);
  const int64_t width = Padded<Math>(work.head_dim);
  const int64_t count = item.query_end - item.query_begin;
  const float factor = work.scale * kLog2E;
  Math::Begin();
  for (int64_t head = item.head_begin; head < item.head_end; ++head) {
    const int64_t first_token = item.sequence_begin + item.query_begin;
    for (int64_t query = 0; query < count; query += kTile) {
      int64_t queries = Smaller(kTile, count - query);
      CopyRows<Math>(HeadRow<const T>(work.q, first_token + query, head, work.head_dim),
                     work.q.stride, queries, work.head_dim, scratch.rows);
      ColumnPanel<Math>(scratch.rows, Padded<Math>(queries), width,
                        scratch.queries + query * Math::kPair, kSpanStride);
    }
    const int64_t first_key = FirstKey(work, item.query_begin);
    for (int64_t key = Larger(item.key_begin, first_key); key < item.key_end; key += kTile) {
      int64_t keys = Smaller(kTile, item.key_end - key), rows = Padded<Math>(keys);
      int64_t token = item.sequence_begin + key;
      CopyRows<Math>(HeadRow<const T>(work.v, token, item.kv_head, work.head_dim), work.v.stride,
                     keys, work.head_dim, scratch.rows);
      TransposeRows<Math>(scratch.rows, rows, width, scratch.pairs, scratch.values);
      CopyRows<Math>(HeadRow<const T>(work.k, token, item.kv_head, work.head_dim), work.k.stride,
                     keys, work.head_dim, scratch.rows);
      for (int64_t query = 0; query < count; query += kTile) {
        int64_t columns = Padded<Math>(Smaller(kTile, count - query));
        int64_t first_query = item.query_begin + query;
        const int64_t first = FirstKey(work, first_query);
        if (work.causal && (key >= first_query + kTile || key < first)) continue;
        const SeenPart<Math> seen{rows, columns, work.causal && key == first_query};
        seen.ByColumns([&](int64_t c, int64_t some, int64_t seen_rows) {
          Math::Multiply(scratch.rows, width, scratch.queries + (query + c) * Math::kPair,
                         kSpanStride * Math::kPair, scratch.scores + c, kTile, seen_rows, some,
                         width, false);
        });
        if (IsMasked(work, keys, rows, key, first_query)) {
          MaskScores(work, scratch.scores, rows, columns, keys, key, first_query);
        }
        WithDropout(work, head, first_token + query, key, [&](const auto& dropout) {
          SoftmaxTile<Math>(scratch.scores, seen, factor, key == first, scratch.max + query,
                            scratch.total + query, scratch.sums + query, width,
                            scratch.probabilities, dropout);
        });
        seen.ByColumns([&](int64_t c, int64_t some, int64_t seen_rows) {
          Math::Multiply(scratch.values, kTile, scratch.probabilities + c * Math::kPair,
                         kTile * Math::kPair, scratch.sums + query + c, kSpanStride, width, some,
                         seen_rows, key > first);
        });
      }
    }
    float* log_sum_exp = work.log_sum_exp + head * work.tokens + first_token;
    for (int64_t query = 0; query < count; query += kLanes) {
      VecF total = Load(scratch.total + query);
      VecF log = Fma(Load(scratch.max + query), Set(kLn2), Log(total));
      Store(scratch.total + query, 1.0f / (total * work.dropout.kept));
      if (query + kLanes <= count) {
        Store(log_sum_exp + query, log);
      } else {
        StorePart(log_sum_exp + query, log, count - query);
      }
    }
    StoreTransposed<Math>(scratch.sums, kSpanStride, scratch.total, count, work.head_dim,
                          HeadRow<T>(work.out, first_token, head, work.head_dim), work.out.stride);
  }
  Math::End();
}

}  // namespace weft::kernels::cpu::WEFT_ISA
