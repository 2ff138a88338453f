#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// Attention over a part of the keys a call, where sequences are partitioned over several owners
/// (Liu et al. 2023, "Ring Attention", arXiv 2310.01889). Tokens of all sequences follow one
/// another, `length` of each, in q as in k and v, whose tokens are others. Of each sequence the
/// queries [query_begin, query_end) see all of the keys [key_begin, key_end), and no others.
struct AttendPartArgs {
  TensorView q;  ///< [tokens, heads * head_dim] f32, bf16 or f16, rows may be strided
  TensorView k;  ///< [tokens, kv_heads * head_dim] same type
  TensorView v;  ///< [tokens, kv_heads * head_dim] same type
  int64_t length = 0;
  int64_t query_begin = 0, query_end = 0;
  int64_t key_begin = 0, key_end = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  float scale = 1.0f;  ///< positive; usually 1 / sqrt(head_dim)
  /// [tokens, heads * head_dim] f32: of the keys seen in earlier calls, and then of these too: each
  /// of both results weighs as much as its softmax denominator. Rows of other queries stay.
  TensorView out;
  TensorView log_sum_exp;  ///< [heads, tokens] f32, likewise; finite
  /// On a CUDA device [AttendPartWorkspaceBytes] u8, aligned as device memory is; unused on a CPU.
  TensorView workspace = {};
};

/// What AttendPart and AttendPartBackward need of it: less, the longer the blocks of as many tokens
/// each are that both the queries and the keys of a sequence can be cut into.
int64_t AttendPartWorkspaceBytes(const AttendPartArgs& args);

struct AttendPartBackwardArgs {
  AttendPartArgs part;  ///< log_sum_exp: of all keys, an input. `out` is not read.
  TensorView out;       ///< [tokens, heads * head_dim], the type of q: of all keys.
  TensorView dout;      ///< like out
  TensorView dq;        ///< like q, but f32: this part is added, as to the two below.
  TensorView dk;        ///< like k, but f32
  TensorView dv;        ///< like v, but f32
};

/// Softmax and sums in f32; what a part gives is rounded to the type of q before it is merged or
/// added. Deterministic for any number of threads. head_dim 8 to 256, a multiple of 8. kInvalid
/// when shapes, types or ranges do not agree.
WEFT_DEVICE_OP(AttendPart, AttendPartArgs)
WEFT_DEVICE_OP(AttendPartBackward, AttendPartBackwardArgs)

}  // namespace weft::kernels
