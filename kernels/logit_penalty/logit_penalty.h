#pragma once

#include <cstdint>

#include "kernels/step_value.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// The squares of a chunk of logits and the gradient of their sum. Of each row r that has a target
///   squares[r] = sum over the vocabulary of logits[r, c]^2
///   gradient[r, c] += 2 * grad_scale * factor * logits[r, c]
/// in f32. Rows without a target have squares of 0, and their gradients stay as they are, as those
/// of padded columns do.
struct LogitPenaltyArgs {
  TensorView logits;   ///< [rows, columns] f32, bf16 or f16
  TensorView targets;  ///< [rows] i32, kIgnoreTarget (kernels/cross_entropy) where there is none
  int64_t vocabulary = 0;              ///< Real columns; the rest up to `columns` is padding.
  StepValue<float> grad_scale = 1.0f;  ///< As that of CrossEntropy.
  float factor = 1;
  TensorView gradient;  ///< [rows, columns], type of the logits; not these
  TensorView squares;   ///< [rows] f32
};

/// kInvalid when arguments do not fit.
WEFT_DEVICE_OP(LogitPenalty, LogitPenaltyArgs)

}  // namespace weft::kernels
