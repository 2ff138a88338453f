#pragma once

#include <cstdint>

#include "worker/engine/nn/self_attention.h"

namespace weft::engine {

/// Appends rows [count, kv_heads * head_dim] of keys and values to the cache, which has room.
Status AppendKeysAndValues(Context& context, const Tensor& keys, const Tensor& values,
                           KeyValueCache& cache);

/// Attention of the last tokens in the cache, with queries `q` [count, heads * head_dim]. Each
/// attends, by logits times `scale`, to the tokens up to itself, the last `window` of them (0:
/// all). Returns a tensor like q. On the CPU, wherever the cache is; one token at a time, meant for
/// decoding.
Result<Tensor> AttendCached(Context& context, const Tensor& q, int64_t heads, int64_t kv_heads,
                            float scale, int64_t window, const KeyValueCache& cache);

}  // namespace weft::engine
