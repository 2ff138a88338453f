#pragma once

#include "kernels/step_value.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Label of a position that has no target: no loss, no gradient.
inline constexpr int32_t kIgnoreTarget = -1;

/// Softmax cross-entropy of a chunk of logits and, in place, its gradient: afterwards
/// logits[r, c] = grad_scale * gradient_weights[r] * (softmax(logits[r])[c] - [c == targets[r]]),
/// zero for ignored rows and for the padded columns. The probabilities are never stored, fp32
/// logits never exist. A target outside the vocabulary is kInvalid on the CPU; on CUDA, where that
/// would mean to wait for the device, it makes the loss of its row NaN and the gradient zero.
struct CrossEntropyArgs {
  TensorView logits;       ///< [rows, columns] f32, bf16 or f16; overwritten when write_gradient
  TensorView targets;      ///< [rows] i32 in [0, vocabulary) or kIgnoreTarget
  int64_t vocabulary = 0;  ///< Real columns; the rest up to `columns` is padding.
  StepValue<float> grad_scale = 1.0f;  ///< usually 1 / number of targets of the global batch
  bool write_gradient = true;
  TensorView losses;  ///< [rows] f32: -log softmax at the target, 0 for ignored rows
  /// [rows] i32: the column of the largest logit, the first of equal ones; or none. Meant for few
  /// columns: read once more before the loss.
  TensorView predictions = {};
  /// [rows] f32, or none: all 1. They change no loss.
  TensorView gradient_weights = {};
};

/// Columns of logits that are on one of several ranks, which have the others.
struct LogitsPart {
  int64_t first = 0;       ///< Token of column 0.
  int64_t columns = 0;     ///< Real ones; those after them are padding.
  int64_t vocabulary = 0;  ///< Of all ranks together.
};

/// Numbers that a rank finds for each row, by row of `found`: the largest logit, the sum of
/// exp(logit - largest), and the logit at the target, or 0 where another rank has it.
inline constexpr int64_t kLogitsPartNumbers = 3;

/// What CrossEntropy needs to know of the logits of one rank. Rows without a target may be left
/// out: their numbers are zero. Targets as for CrossEntropy.
struct MeasureLogitsPartArgs {
  TensorView logits;   ///< [rows, at least part.columns] f32, bf16 or f16
  TensorView targets;  ///< [rows] i32 in [0, part.vocabulary) or kIgnoreTarget
  LogitsPart part;
  TensorView found;  ///< [kLogitsPartNumbers, rows] f32
};

/// CrossEntropy over logits that are spread over ranks, from what MeasureLogitsPart found on each
/// of them, which is put together in the order of the ranks.
struct CrossEntropyOfPartsArgs {
  TensorView logits;   ///< As above; overwritten when write_gradient, padding with zero.
  TensorView targets;  ///< As above.
  LogitsPart part;
  TensorView found;  ///< [ranks * kLogitsPartNumbers, rows] f32, rank after rank
  float grad_scale = 1.0f;
  bool write_gradient = true;
  TensorView losses;                 ///< [rows] f32, the same on all ranks
  TensorView gradient_weights = {};  ///< As above, the same on all ranks.
};

WEFT_DEVICE_OP(CrossEntropy, CrossEntropyArgs)
WEFT_DEVICE_OP(MeasureLogitsPart, MeasureLogitsPartArgs)
WEFT_DEVICE_OP(CrossEntropyOfParts, CrossEntropyOfPartsArgs)

}  // namespace weft::kernels
