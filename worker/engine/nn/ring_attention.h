#pragma once

#include "kernels/attention/attention.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Causal attention of sequences that `ranks` share (Liu et al. 2023, "Ring Attention", arXiv
/// 2310.01889; chunks as in zhuzilin/ring-flash-attention's zigzag). All ranks call it with the
/// tokens that they have: sequences of equal length, no window. Keys and values go round, each rank
/// attending to those that it has while the next ones come; of two chunks of others a rank sees
/// either both with its later queries, or the earlier with all.
///
/// The results are those of kernels::AttentionForward over the whole sequences: `out` of the own
/// tokens, and their log_sum_exp over all keys.
Status RingAttentionForward(Context& context, const ContextParallel& ranks,
                            const kernels::AttentionForwardArgs& own);

/// The gradients of the own queries, keys and values. The sums of those of keys and values follow
/// them round the ring, in f32, and end where they belong: each is added up in the same order every
/// time.
Status RingAttentionBackward(Context& context, const ContextParallel& ranks,
                             const kernels::AttentionBackwardArgs& own);

}  // namespace weft::engine
