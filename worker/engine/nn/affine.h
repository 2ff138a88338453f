#pragma once

#include <cstdint>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// y = x * scale + shift, of parameters that hold one number for each column or one for all.
class Affine : public Graft {
 public:
  /// -1: without.
  Affine(const ParameterSet* parameters, int64_t scale, int64_t shift)
      : parameters_(parameters), scale_(scale), shift_(shift) {}

  /// Saves x when the scale is trained; otherwise works in place when nothing else reads x.
  Result<Value> Forward(Context& context, Tape& tape, Value x, const GraftUse& use) const override;

 private:
  TensorView scale() const { return scale_ < 0 ? TensorView() : parameters_->operand(scale_); }
  TensorView shift() const { return shift_ < 0 ? TensorView() : parameters_->operand(shift_); }
  Status Differentiate(Context& context, Tape& tape, const Tensor& dy, const Tensor& x,
                       const Tensor& dx) const;

  const ParameterSet* parameters_;
  int64_t scale_;
  int64_t shift_;
};

}  // namespace weft::engine
