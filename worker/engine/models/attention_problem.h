#pragma once

#include <cstdint>

#include "worker/engine/models/gradient_problems.h"

namespace weft::engine {

struct AttentionKind {
  bool causal = true;
  bool rotary = false;
  int64_t window = 0;  ///< 0: none.
  double dropout = 0;
};

/// Attention of some heads over sequences of drawn lengths, with its four products.
Problem AttentionProblem(Sides& sides, const AttentionKind& kind);

}  // namespace weft::engine
