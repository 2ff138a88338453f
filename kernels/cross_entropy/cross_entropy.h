#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Label of a position that has no target: no loss, no gradient.
inline constexpr int32_t kIgnoreTarget = -1;

/// Softmax cross-entropy of a chunk of logits and, in place, its gradient: afterwards
/// logits[r, c] = grad_scale * (softmax(logits[r])[c] - [c == targets[r]]), zero for ignored rows
/// and for the padded columns. The probabilities are never stored, fp32 logits never exist.
/// A target outside the vocabulary is kInvalid on the CPU; on CUDA, where that would mean to wait
/// for the device, it makes the loss of its row NaN and the gradient zero.
struct CrossEntropyArgs {
  TensorView logits;        ///< [rows, columns] f32, bf16 or f16; overwritten when write_gradient
  TensorView targets;       ///< [rows] i32 in [0, vocabulary) or kIgnoreTarget
  int64_t vocabulary = 0;   ///< Real columns; the rest up to `columns` is padding.
  float grad_scale = 1.0f;  ///< usually 1 / number of targets of the global batch
  bool write_gradient = true;
  TensorView losses;  ///< [rows] f32: -log softmax at the target, 0 for ignored rows
  /// [rows] i32: the column of the largest logit, the first of equal ones; or none. Meant for few
  /// columns: read once more before the loss.
  TensorView predictions = {};
};

WEFT_DEVICE_OP(CrossEntropy, CrossEntropyArgs)

}  // namespace weft::kernels
