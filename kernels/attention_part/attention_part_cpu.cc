#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention_items.h"
#include "kernels/attention_part/attention_part.h"
#include "kernels/attention_part/attention_part_check.h"
#include "kernels/cpu/float_types.h"

namespace weft::kernels::cpu {
namespace {

// What one thread does: the queries of some heads of a sequence against keys of their key head,
// both counted from the first row.
struct PartItem {
  int64_t kv_head = 0;
  int64_t head_begin = 0, heads = 0;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool query_gradient = true, key_gradient = true;

  // A measure of its time.
  int64_t Cost() const { return heads * queries * keys; }
  int64_t Sums() const { return heads * queries; }
};

TokenRows RowsFrom(const TensorView& view, int64_t row, int64_t column) {
  const auto elements = static_cast<size_t>(row * view.row_stride + column);
  return {static_cast<char*>(view.data) + elements * DTypeSize(view.dtype), view.row_stride};
}

int64_t HeadDim(const AttendPartArgs& args) {
  return args.q.shape[1] / args.heads;
}

// The item as the kernels of attention see it: a sequence of its own, without a mask.
AttentionWork WorkOf(const AttendPartArgs& args, const PartItem& item) {
  AttentionWork work;
  work.head_dim = HeadDim(args);
  work.tokens = args.q.shape[0];
  work.scale = args.scale;
  work.causal = false;
  work.q = RowsFrom(args.q, item.query, item.head_begin * work.head_dim);
  work.k = RowsFrom(args.k, item.key, item.kv_head * work.head_dim);
  work.v = RowsFrom(args.v, item.key, item.kv_head * work.head_dim);
  work.log_sum_exp = args.log_sum_exp.As<float>() + item.head_begin * work.tokens + item.query;
  return work;
}

AttentionItem WholeOf(const PartItem& item) {
  return {.head_end = item.heads,
          .query_end = item.queries,
          .key_end = item.keys,
          .query_gradient = item.query_gradient,
          .key_gradient = item.key_gradient};
}

// Cuts queries or keys of each sequence into spans: calls fn(first row of the sequence, begin,
// end).
template <class Fn>
void ForEachSpan(const AttendPartArgs& args, int64_t begin, int64_t end, Fn&& fn) {
  for (int64_t row = 0; row < args.q.shape[0]; row += args.length) {
    for (int64_t at = begin; at < end; at += kAttentionSpan) {
      fn(row, at, std::min(at + kAttentionSpan, end));
    }
  }
}

// One head and span of queries each.
std::vector<PartItem> QueryItems(const AttendPartArgs& args) {
  std::vector<PartItem> items;
  ForEachSpan(args, args.query_begin, args.query_end, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < args.heads; ++h) {
      items.push_back({.kv_head = h * args.kv_heads / args.heads,
                       .head_begin = h,
                       .heads = 1,
                       .query = row + begin,
                       .queries = end - begin,
                       .key = row + args.key_begin,
                       .keys = args.key_end - args.key_begin,
                       .key_gradient = false});
    }
  });
  return items;
}

// One head of keys and all queries each, or a span of the keys.
std::vector<PartItem> KeyItems(const AttendPartArgs& args, bool spans) {
  const int64_t group = args.heads / args.kv_heads;
  std::vector<PartItem> items;
  const auto add = [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      items.push_back({.kv_head = h,
                       .head_begin = h * group,
                       .heads = group,
                       .query = row + args.query_begin,
                       .queries = args.query_end - args.query_begin,
                       .key = row + begin,
                       .keys = end - begin,
                       .query_gradient = !spans});
    }
  };
  if (spans) {
    ForEachSpan(args, args.key_begin, args.key_end, add);
    return items;
  }
  for (int64_t row = 0; row < args.q.shape[0]; row += args.length) {
    add(row, args.key_begin, args.key_end);
  }
  return items;
}

// Whole sequences and key heads, so that scores are computed once; or queries and keys apart, where
// a thread would wait for longer than that takes. Results are the same bits either way.
std::vector<PartItem> BackwardItems(const AttendPartArgs& args) {
  std::vector<PartItem> items = KeyItems(args, false);
  if (static_cast<int64_t>(items.size()) >= Threads()) return items;
  items = QueryItems(args);
  const std::vector<PartItem> keys = KeyItems(args, true);
  items.insert(items.end(), keys.begin(), keys.end());
  return items;
}

int64_t Aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Merges the result of `item` for its queries, whose rows follow one another.
template <class T>
void Merge(const AttendPartArgs& args, const PartItem& item, const T* part, const float* part_log) {
  const int64_t head_dim = HeadDim(args);
  float* log = args.log_sum_exp.As<float>() + item.head_begin * args.q.shape[0] + item.query;
  const TokenRows rows = RowsFrom(args.out, item.query, item.head_begin * head_dim);
  for (int64_t i = 0; i < item.queries; ++i) {
    const float most = std::max(log[i], part_log[i]);
    const float sum = most + std::log(std::exp(log[i] - most) + std::exp(part_log[i] - most));
    const float keep = std::exp(log[i] - sum), add = std::exp(part_log[i] - sum);
    log[i] = sum;
    float* out = static_cast<float*>(rows.data) + i * rows.stride;
    for (int64_t c = 0; c < head_dim; ++c) {
      out[c] = keep * out[c] + add * ToFloat(part[i * head_dim + c]);
    }
  }
}

// Adds rows of `columns` elements, one behind the other, to those of `sums` from `row` on.
template <class T>
void AddRows(const T* part, int64_t rows, int64_t columns, const TensorView& sums, int64_t row,
             int64_t column) {
  const TokenRows to = RowsFrom(sums, row, column);
  for (int64_t r = 0; r < rows; ++r) {
    float* sum = static_cast<float*>(to.data) + r * to.stride;
    for (int64_t c = 0; c < columns; ++c) sum[c] += ToFloat(part[r * columns + c]);
  }
}

template <class T>
Status Forward(const AttendPartArgs& args) {
  const AttentionTable& table = PickAttentionTable(args.q.dtype);
  const int64_t head_dim = HeadDim(args);
  const int64_t scratch = Aligned(table.forward_scratch(head_dim));
  const int64_t logs = Aligned(kAttentionSpan * static_cast<int64_t>(sizeof(float)));
  const int64_t part = kAttentionSpan * head_dim * static_cast<int64_t>(sizeof(T));
  return RunAttentionItems("AttendPart", QueryItems(args), scratch + logs + part,
                           [&](const PartItem& item, unsigned char* memory) {
                             auto* part_log = reinterpret_cast<float*>(memory + scratch);
                             auto* out = reinterpret_cast<T*>(memory + scratch + logs);
                             AttentionWork work = WorkOf(args, item);
                             work.out = {out, head_dim};
                             work.log_sum_exp = part_log;
                             table.forward(work, WholeOf(item), memory);
                             Merge(args, item, out, part_log);
                           });
}

template <class T>
Status Backward(const AttendPartBackwardArgs& args) {
  const AttendPartArgs& part = args.part;
  const AttentionTable& table = PickAttentionTable(part.q.dtype);
  const int64_t head_dim = HeadDim(part);
  const std::vector<PartItem> items = BackwardItems(part);
  int64_t keys = 0, sums = 0;
  for (const PartItem& item : items) {
    if (item.key_gradient) keys = std::max(keys, item.keys);
    if (item.query_gradient) sums = std::max(sums, item.Sums());
  }
  const int64_t row = head_dim * static_cast<int64_t>(sizeof(T));
  const int64_t scratch = Aligned(table.backward_scratch(head_dim, keys));
  const int64_t key_bytes = Aligned(keys * row);
  return RunAttentionItems(
      "AttendPartBackward", items, scratch + 2 * key_bytes + sums * row,
      [&](const PartItem& item, unsigned char* memory) {
        auto* dk = reinterpret_cast<T*>(memory + scratch);
        auto* dv = reinterpret_cast<T*>(memory + scratch + key_bytes);
        auto* dq = reinterpret_cast<T*>(memory + scratch + 2 * key_bytes);
        AttentionWork work = WorkOf(part, item);
        const int64_t column = item.head_begin * head_dim;
        work.out = RowsFrom(args.out, item.query, column);
        work.dout = RowsFrom(args.dout, item.query, column);
        work.dq = {dq, item.heads * head_dim};
        work.dk = {dk, head_dim};
        work.dv = {dv, head_dim};
        table.backward(work, WholeOf(item), memory);
        if (item.query_gradient) {
          AddRows(dq, item.queries, item.heads * head_dim, args.dq, item.query, column);
        }
        if (!item.key_gradient) return;
        AddRows(dk, item.keys, head_dim, args.dk, item.key, item.kv_head * head_dim);
        AddRows(dv, item.keys, head_dim, args.dv, item.key, item.kv_head * head_dim);
      });
}

}  // namespace

Status AttendPart(const Stream& stream, const AttendPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAttendPart(stream, args));
  if (SeesNothing(args)) return OkStatus();
  return WithFloatType(args.q.dtype, [&]<class T>() { return Forward<T>(args); });
}

Status AttendPartBackward(const Stream& stream, const AttendPartBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAttendPartBackward(stream, args));
  if (SeesNothing(args.part)) return OkStatus();
  return WithFloatType(args.part.q.dtype, [&]<class T>() { return Backward<T>(args); });
}

}  // namespace weft::kernels::cpu
