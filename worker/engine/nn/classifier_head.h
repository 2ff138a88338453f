#pragma once

#include <cstdint>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/linear.h"

namespace weft::engine {

/// Logits and their softmax cross-entropy, over a vocabulary padded to whole tiles. The logits of
/// all tokens never exist: chunk after chunk they are computed, turned into their gradient in place
/// and, while in cache, multiplied into the gradients of the weight and of the input.
class ClassifierHead {
 public:
  /// `weight` [padded vocabulary, width] may be shared with an embedding; the caller packs it.
  ClassifierHead(const ParameterSet* parameters, const PackedParameter* weight, int64_t vocabulary)
      : parameters_(parameters), weight_(weight), vocabulary_(vocabulary) {}

  /// Sum of -log softmax at the targets that are not ignored. When the tape records, the gradient
  /// of gradient_scale * sum is computed here, not in the backward pass.
  Result<double> LossSum(Context& context, Tape& tape, const Value& hidden, const Tensor& targets,
                         float gradient_scale) const;

  /// [rows, padded vocabulary], compute type; columns from the vocabulary on mean nothing.
  Result<Tensor> Logits(Context& context, const Tensor& hidden) const;

 private:
  const ParameterSet* parameters_;
  const PackedParameter* weight_;
  int64_t vocabulary_;
};

}  // namespace weft::engine
