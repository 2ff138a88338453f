#pragma once

#include <cstdint>
#include <string_view>

#include "common/model/model_shape.h"

namespace weft {

/// How ranks attend that share each sequence (worker/engine/nn/ring_attention.h and
/// ulysses_attention.h).
struct ContextSharing {
  int64_t ranks = 1;
  bool ulysses = false;  ///< They exchange heads; else keys and values go round.
};

/// What one attention makes a rank tell the others, in one direction.
struct ContextTraffic {
  int64_t sent = 0;      ///< Bytes that leave a rank.
  int64_t messages = 0;  ///< To one other rank each, one after the other.
};

/// Of a layer, for `tokens` tokens of a rank with activations of `element` bytes. Ranks that share
/// matrices each tell others of their own heads.
ContextTraffic ForwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element);
ContextTraffic BackwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                               int64_t tokens, int64_t element);

/// What the backward pass of an attention has for others' tokens at its peak, beside what that of
/// one rank has.
int64_t ContextWorkspaceBytes(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element);

}  // namespace weft
