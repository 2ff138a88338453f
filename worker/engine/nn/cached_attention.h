#pragma once

#include <cstdint>

#include "worker/engine/nn/self_attention.h"

namespace weft::engine {

/// Appends the key and value columns of `qkv` [count, 3 * width] to the cache, which has room.
void AppendKeysAndValues(const Tensor& qkv, KeyValueCache& cache);

/// Appends the new tokens' keys and values to the cache and lets each new token attend to all
/// tokens up to itself. Returns [count, width]. CPU; one token at a time, meant for decoding.
Result<Tensor> AttendCached(Context& context, const Tensor& qkv, int64_t heads,
                            KeyValueCache& cache);

}  // namespace weft::engine
