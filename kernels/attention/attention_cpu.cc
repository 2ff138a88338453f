#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/argument_check.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_items.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// What the host can see of the sequences, which CheckAttentionForward leaves out.
Status CheckSequenceStarts(const Stream& stream, const char* op, const AttentionForwardArgs& args) {
  ArgumentCheck check(stream, op);
  const int64_t sequences = args.sequence_starts.shape[0] - 1;
  const int32_t* starts = args.sequence_starts.As<int32_t>();
  check.That(starts[0] == 0 && starts[sequences] == args.q.shape[0],
             "sequence_starts does not go from 0 to the number of tokens");
  for (int64_t s = 0; s < sequences && check.status().ok(); ++s) {
    if (starts[s] <= starts[s + 1]) continue;
    check.That(false, "sequence_starts falls from " + std::to_string(starts[s]) + " to " +
                          std::to_string(starts[s + 1]) + " at sequence " + std::to_string(s));
  }
  for (int64_t s = 0; args.length > 0 && s < sequences && check.status().ok(); ++s) {
    check.That(starts[s + 1] - starts[s] == args.length, "length is not that of every sequence");
  }
  return check.status();
}

TokenRows Rows(const TensorView& view) {
  return {view.data, view.row_stride};
}

AttentionWork ForwardWork(const AttentionForwardArgs& args) {
  AttentionWork work;
  work.q = Rows(args.q);
  work.k = Rows(args.k);
  work.v = Rows(args.v);
  work.out = Rows(args.out);
  work.log_sum_exp = args.log_sum_exp.As<float>();
  work.tokens = args.q.shape[0];
  work.head_dim = args.q.shape[1] / args.heads;
  work.scale = args.scale;
  work.causal = args.causal;
  if (args.window > 0) work.window = args.window;
  work.dropout = DrawOf(args.dropout);
  return work;
}

// Scores that the item computes, as a measure of its time.
int64_t Cost(const AttentionItem& item, bool causal) {
  int64_t queries = item.query_end - item.query_begin, keys = item.key_end - item.key_begin;
  int64_t scores = queries * keys;
  if (causal) {
    // Only half of the square on the diagonal is seen.
    int64_t diagonal =
        std::min(item.query_end, item.key_end) - std::max(item.query_begin, item.key_begin);
    if (diagonal > 0) scores -= diagonal * diagonal / 2;
  }
  return scores * (item.head_end - item.head_begin);
}

// Long items first, so that threads end together.
void SortByCost(std::vector<AttentionItem>& items, bool causal) {
  std::stable_sort(items.begin(), items.end(),
                   [causal](const AttentionItem& a, const AttentionItem& b) {
                     return Cost(a, causal) > Cost(b, causal);
                   });
}

// Calls fn(sequence begin, sequence length, begin of a span, end of the span).
template <class Fn>
void ForEachSpan(const AttentionForwardArgs& args, Fn&& fn) {
  const int32_t* starts = args.sequence_starts.As<int32_t>();
  for (int64_t s = 0; s + 1 < args.sequence_starts.shape[0]; ++s) {
    int64_t length = starts[s + 1] - starts[s];
    for (int64_t begin = 0; begin < length; begin += kAttentionSpan) {
      fn(starts[s], length, begin, std::min(begin + kAttentionSpan, length));
    }
  }
}

std::vector<AttentionItem> QueryItems(const AttentionForwardArgs& args) {
  std::vector<AttentionItem> items;
  ForEachSpan(args, [&](int64_t sequence, int64_t length, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < args.heads; ++h) {
      items.push_back({.sequence_begin = sequence,
                       .kv_head = h * args.kv_heads / args.heads,
                       .head_begin = h,
                       .head_end = h + 1,
                       .query_begin = begin,
                       .query_end = end,
                       .key_begin = 0,
                       .key_end = args.causal ? end : length,
                       .query_gradient = true});
    }
  });
  return items;
}

std::vector<AttentionItem> KeyItems(const AttentionForwardArgs& args) {
  std::vector<AttentionItem> items;
  int64_t group = args.heads / args.kv_heads;
  ForEachSpan(args, [&](int64_t sequence, int64_t length, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      items.push_back({.sequence_begin = sequence,
                       .kv_head = h,
                       .head_begin = h * group,
                       .head_end = (h + 1) * group,
                       .query_begin = args.causal ? begin : 0,
                       .query_end = length,
                       .key_begin = begin,
                       .key_end = end,
                       .key_gradient = true});
    }
  });
  return items;
}

// Both gradients of a whole sequence and key head at once: scores are computed only once.
std::vector<AttentionItem> WholeItems(const AttentionForwardArgs& args) {
  std::vector<AttentionItem> items;
  int64_t group = args.heads / args.kv_heads;
  const int32_t* starts = args.sequence_starts.As<int32_t>();
  for (int64_t s = 0; s + 1 < args.sequence_starts.shape[0]; ++s) {
    int64_t length = starts[s + 1] - starts[s];
    if (length == 0) continue;
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      items.push_back({.sequence_begin = starts[s],
                       .kv_head = h,
                       .head_begin = h * group,
                       .head_end = (h + 1) * group,
                       .query_begin = 0,
                       .query_end = length,
                       .key_begin = 0,
                       .key_end = length,
                       .query_gradient = true,
                       .key_gradient = true});
    }
  }
  return items;
}

// Whole items, unless one of them would keep the other threads waiting for longer than it takes to
// compute everything twice in smaller parts. Results are the same bits either way.
std::vector<AttentionItem> BackwardItems(const AttentionForwardArgs& args) {
  std::vector<AttentionItem> items = WholeItems(args);
  int64_t total = 0, longest = 0;
  for (const AttentionItem& item : items) {
    total += Cost(item, args.causal);
    longest = std::max(longest, Cost(item, args.causal));
  }
  constexpr double kSplitCost = 1.5;
  if (static_cast<double>(longest) > kSplitCost * static_cast<double>(total) / Threads()) {
    items = QueryItems(args);
    std::vector<AttentionItem> keys = KeyItems(args);
    items.insert(items.end(), keys.begin(), keys.end());
  }
  return items;
}

}  // namespace

unsigned char* KeptScratch(size_t size) {
  thread_local ScratchBytes kept;
  thread_local size_t kept_size = 0;
  if (size > kept_size) {
    kept.reset();  // before the larger one is there
    kept.reset(static_cast<unsigned char*>(std::aligned_alloc(kScratchPage, size)));
    kept_size = kept == nullptr ? 0 : size;
  }
  return kept.get();
}

const AttentionTable& PickAttentionTable(DType dtype) {
  if (dtype == DType::kF32) return PickAttentionTables().f32;
  if (dtype == DType::kF16) return PickAttentionTables().f16;
  if (ActiveIsa() == Isa::kAmx) return avx512_bf16::kAttentionTileTable;
  if (ActiveIsa() == Isa::kAvx512Bf16) return avx512_bf16::kAttentionDotTable;
  return PickAttentionTables().bf16;
}

Status AttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAttentionForward(stream, args));
  WEFT_RETURN_IF_ERROR(CheckSequenceStarts(stream, "AttentionForward", args));
  const AttentionTable& table = PickAttentionTable(args.q.dtype);
  const AttentionWork work = ForwardWork(args);
  std::vector<AttentionItem> items = QueryItems(args);
  SortByCost(items, args.causal);
  return RunAttentionItems("AttentionForward", items, table.forward_scratch(work.head_dim),
                           [&](const AttentionItem& item, unsigned char* scratch) {
                             table.forward(work, item, scratch);
                           });
}

Status AttentionBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionForwardArgs& forward = args.forward;
  WEFT_RETURN_IF_ERROR(CheckAttentionBackward(stream, args));
  WEFT_RETURN_IF_ERROR(CheckSequenceStarts(stream, "AttentionBackward", forward));
  const AttentionTable& table = PickAttentionTable(forward.q.dtype);
  AttentionWork work = ForwardWork(forward);
  work.dout = Rows(args.dout);
  work.dq = Rows(args.dq);
  work.dk = Rows(args.dk);
  work.dv = Rows(args.dv);
  std::vector<AttentionItem> items = BackwardItems(forward);
  SortByCost(items, forward.causal);
  int64_t keys = 0;
  for (const AttentionItem& item : items) {
    if (item.key_gradient) keys = std::max(keys, item.key_end - item.key_begin);
  }
  return RunAttentionItems("AttentionBackward", items, table.backward_scratch(work.head_dim, keys),
                           [&](const AttentionItem& item, unsigned char* scratch) {
                             table.backward(work, item, scratch);
                           });
}

}  // namespace weft::kernels::cpu
