#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/data/batch.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// A Batch where the kernels can read it. What the batch does not have is an empty Tensor.
struct TokenBatch {
  Tensor tokens;                 ///< [count] i32
  Tensor targets;                ///< [count] i32
  Tensor positions;              ///< [count] i32
  Tensor sequence_starts;        ///< [runs + 1] i32
  Tensor token_types;            ///< [count] i32
  Tensor labels;                 ///< [sequences] i32
  Tensor target_rows;            ///< [targets] i32, ascending indices of the positions with targets
  Tensor row_targets;            ///< [targets] i32, what is to be predicted there
  Tensor pixels;                 ///< [sequences, channels * height * width] f32
  std::vector<int32_t> lengths;  ///< [sequences] real tokens; row s is [s * length, + lengths[s])
  int64_t sequences = 0;
  int64_t length = 0;          ///< Tokens per row.
  int64_t count = 0;           ///< sequences * length
  int64_t first_sequence = 0;  ///< Index of row 0 in the global batch.
  int64_t first_token = 0;     ///< Index of token 0 in the global batch; keys the dropout masks.

  /// kInvalid when the sizes within `batch` do not agree.
  static Result<TokenBatch> New(Context& context, const Batch& batch, int64_t first_sequence);
};

}  // namespace weft::engine
