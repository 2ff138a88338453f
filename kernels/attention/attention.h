#pragma once

#include <cstdint>

#include "kernels/attention/attention_dropout.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Multi-head attention over packed sequences, without ever storing the T x T matrix
/// (FlashAttention: Dao et al. 2022, arXiv 2205.14135). Tokens of all sequences follow one
/// another; `sequence_starts` gives where each begins and, last, where the last ends (the usual
/// cu_seqlens). A query sees keys of its own sequence only and, when causal, none after itself.
/// Head h of token t is at row t, columns h*head_dim .. of each view, so q, k and v may be
/// slices of one [tokens, 3*width] matrix. Fewer key heads than query heads: grouped queries.
struct AttentionForwardArgs {
  TensorView q;                ///< [tokens, heads * head_dim] f32, bf16 or f16, rows may be strided
  TensorView k;                ///< [tokens, kv_heads * head_dim] same type
  TensorView v;                ///< [tokens, kv_heads * head_dim] same type
  TensorView sequence_starts;  ///< [sequences + 1] i32, never falling, from 0 to tokens
  int64_t heads = 1;
  int64_t kv_heads = 1;
  float scale = 1.0f;  ///< positive; usually 1 / sqrt(head_dim)
  bool causal = true;
  int64_t window = 0;      ///< Causal only: keys seen, the query's own and those before; 0: all.
  TensorView out;          ///< [tokens, heads * head_dim] same type; overwritten
  TensorView log_sum_exp;  ///< [heads, tokens] f32: log of each row's softmax denominator, which
                           ///< dropout does not change
  int64_t length = 0;      ///< Tokens of every sequence, where the caller knows that all have as
                       ///< many; 0: not known. Lets libraries in, and changes no result of ours.
  AttentionDropout dropout = {};
};

struct AttentionBackwardArgs {
  AttentionForwardArgs forward;  ///< As in the forward pass; out and log_sum_exp are inputs now.
  TensorView dout;               ///< [tokens, heads * head_dim]
  TensorView dq;                 ///< like q; overwritten
  TensorView dk;                 ///< like k; overwritten
  TensorView dv;                 ///< like v; overwritten
};

/// Softmax and sums in f32. Deterministic for any number of threads, but not where a user lets
/// cuDNN compute it (AttentionChoice of kernels/cuda/device.h). head_dim 8 to 256, a multiple
/// of 8. kInvalid when shapes, types or sequence_starts do not agree; on a CUDA device nobody waits
/// for the values of sequence_starts, and of tokens that they do not give to one sequence each the
/// results are unspecified, but nothing outside the tensors is touched.
WEFT_DEVICE_OP(AttentionForward, AttentionForwardArgs)
WEFT_DEVICE_OP(AttentionBackward, AttentionBackwardArgs)

}  // namespace weft::kernels
