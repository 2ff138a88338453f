#pragma once

#include <cstdint>
#include <string_view>

#include "common/model/model_shape.h"

namespace weft {

/// Attention of context-parallel ranks (worker/engine/nn/ring_attention.h and ulysses_attention.h).
struct ContextSharing {
  int64_t ranks = 1;
  bool ulysses = false;  ///< They exchange heads; else keys and values circulate.
};

/// The traffic of one attention of a rank, in one direction.
struct ContextTraffic {
  int64_t sent = 0;      ///< Bytes that a rank sends.
  int64_t messages = 0;  ///< To one other rank each, one after the other.
};

/// The traffic of a layer, for `tokens` tokens of a rank with activations of `element` bytes. A
/// tensor-parallel rank exchanges its own heads.
ContextTraffic ForwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element);
ContextTraffic BackwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                               int64_t tokens, int64_t element);

/// Bytes that the backward pass of an attention holds for others' tokens at its peak, in addition
/// to those of one rank.
int64_t ContextWorkspaceBytes(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element);

}  // namespace weft
