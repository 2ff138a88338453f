#pragma once

#include "kernels/attention/attention.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// The attention of ring_attention.h by another method (Jacobs et al. 2023, "DeepSpeed-Ulysses",
/// arXiv 2309.14509): ranks exchange their tokens' queries, keys and values for all tokens of some
/// heads, attend, and exchange the results back. The heads of queries are a multiple of the ranks;
/// those of keys and values too, or several ranks have the same one, whose gradients are added in
/// rank order. Only what `own` names is saved for the backward pass, which exchanges the rest once
/// more. log_sum_exp covers the rank's heads.
Status UlyssesAttentionForward(Context& context, const ContextParallel& ranks,
                               const kernels::AttentionForwardArgs& own);
Status UlyssesAttentionBackward(Context& context, const ContextParallel& ranks,
                                const kernels::AttentionBackwardArgs& own);

}  // namespace weft::engine
