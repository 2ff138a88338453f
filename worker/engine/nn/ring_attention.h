#pragma once

#include "kernels/attention/attention.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Causal attention of sequences whose tokens are partitioned over `ranks` (Liu et al. 2023, "Ring
/// Attention", arXiv 2310.01889; chunks as in zhuzilin/ring-flash-attention's zigzag). All ranks
/// call it with the tokens that they have: sequences of equal length, no window. Keys and values
/// circulate: each rank attends to those that it has while the next ones arrive. Of two chunks of
/// others a rank sees either both with its later queries, or the earlier one with all.
///
/// The results are those of kernels::AttentionForward over the whole sequences: `out` of the rank's
/// tokens, and their log_sum_exp over all keys.
Status RingAttentionForward(Context& context, const ContextParallel& ranks,
                            const kernels::AttentionForwardArgs& own);

/// Computes the gradients of the rank's queries, keys and values. The sums for keys and values
/// follow them round the ring, in f32, back to their owner. Each sum always has the same order.
Status RingAttentionBackward(Context& context, const ContextParallel& ranks,
                             const kernels::AttentionBackwardArgs& own);

}  // namespace weft::engine
