#pragma once

#include "common/status.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// A network whose logits another network of the same vocabulary may add to its own. Nothing of it
/// is differentiated.
class LogitsSource {
 public:
  virtual ~LogitsSource() = default;

  /// What its classifier reads, [tokens of the batch, its width], compute type.
  virtual Result<Tensor> HiddenStates(Context& context, const TokenBatch& batch) const = 0;

  /// Adds the logits of some rows of HiddenStates to `logits` [rows, columns], in the compute type:
  /// those of the vocabulary, or of the part of it that is here (ModelOptions::logits_part). What
  /// it adds to the columns behind these means nothing.
  virtual Status AddLogits(Context& context, const Tensor& hidden, const Tensor& logits) const = 0;
};

/// What a head adds to its own logits.
struct AddedLogits {
  const LogitsSource* source = nullptr;  ///< Outlives the head.
  /// In training, factor of the mean of the squares of the head's own logits, over targets and
  /// vocabulary, in the loss that is differentiated. The loss that is reported is without.
  double penalty = 0;
  /// Gets the sums of these squares added for a penalty, in memory of the stream's device.
  double* squares = nullptr;
};

}  // namespace weft::engine
