#pragma once

#include <cstdint>

#include "worker/engine/data/batch.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// A Batch where the kernels can read it.
struct TokenBatch {
  Tensor tokens;           ///< [count] i32
  Tensor targets;          ///< [count] i32
  Tensor positions;        ///< [count] i32
  Tensor sequence_starts;  ///< [runs + 1] i32
  int64_t count = 0;
  int64_t first_token = 0;  ///< Index of token 0 in the global batch; keys the dropout masks.

  /// kInvalid when the sizes within `batch` do not agree.
  static Result<TokenBatch> New(Context& context, const Batch& batch, int64_t first_sequence);
};

}  // namespace weft::engine
