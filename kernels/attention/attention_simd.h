#pragma once

#include <cstdint>

#include "kernels/attention/attention_dropout.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Rows of a token matrix, its type known from the function they are passed to.
struct TokenRows {
  void* data = nullptr;
  int64_t stride = 0;  ///< Elements between rows.
};

/// A window longer than any sequence.
inline constexpr int64_t kNoWindow = int64_t{1} << 48;

/// One call of the operation, after its arguments were checked.
struct AttentionWork {
  TokenRows q, k, v, out;
  TokenRows dout, dq, dk, dv;    ///< Backward only.
  float* log_sum_exp = nullptr;  ///< [heads, tokens]
  int64_t tokens = 0;
  int64_t head_dim = 0;
  float scale = 1;
  bool causal = true;
  int64_t window = kNoWindow;  ///< Keys a query sees: its own and those before.
  AttentionDraw dropout;
};

/// A part that one thread does: queries of some heads against keys of their common key head, both
/// counted from the begin of the sequence and beginning at a multiple of kAttentionSpan.
struct AttentionItem {
  int64_t sequence_begin = 0;  ///< First token.
  int64_t kv_head = 0;
  int64_t head_begin = 0, head_end = 0;
  int64_t query_begin = 0, query_end = 0;
  int64_t key_begin = 0, key_end = 0;
  bool query_gradient = false;  ///< Backward: write dq of the item's queries, ...
  bool key_gradient = false;    ///< ... write dk and dv of the item's keys; one or both.
};

/// Queries whose sums an item holds at a time.
inline constexpr int64_t kAttentionSpan = 256;

/// Kernels for one element type. `scratch` is 64-byte aligned memory of at least the size that the
/// function next to each returns, of arbitrary content.
struct AttentionTable {
  int64_t (*forward_scratch)(int64_t head_dim);
  void (*forward)(const AttentionWork& work, const AttentionItem& item, unsigned char* scratch);
  int64_t (*backward_scratch)(int64_t head_dim, int64_t keys);
  void (*backward)(const AttentionWork& work, const AttentionItem& item, unsigned char* scratch);
};

struct AttentionTables {
  AttentionTable f32, bf16, f16;
};
WEFT_ISA_TABLE(AttentionTables)

/// bf16 multiplied as bf16: by vdpbf16ps, and by AMX tiles.
namespace avx512_bf16 {
extern const AttentionTable kAttentionDotTable;
extern const AttentionTable kAttentionTileTable;
}  // namespace avx512_bf16

}  // namespace weft::kernels::cpu
