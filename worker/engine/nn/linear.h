#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/linear/linear.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// A weight matrix of a ParameterSet with its compute copies.
class PackedParameter {
 public:
  /// `parameters` outlives this.
  PackedParameter(const ParameterSet* parameters, int64_t index, DType compute)
      : parameters_(parameters), index_(index), compute_(compute) {}

  /// Renews the copies from the master, padded rows included: after every change of it.
  Status Pack(Context& context);

  int64_t index() const { return index_; }
  DType compute() const { return compute_; }
  /// After Pack.
  const kernels::PackedWeight* packed() const { return packed_.get(); }

 private:
  const ParameterSet* parameters_;
  int64_t index_;
  DType compute_;
  std::unique_ptr<kernels::PackedWeight> packed_;
  ExternalBytes held_;
};

/// y = x Wᵀ + b with W [out, in] named `name`.weight and b `name`.bias.
class Linear {
 public:
  Linear(ParameterSet* parameters, const std::string& name, int64_t in_features,
         int64_t out_features, double deviation, DType compute);

  Status Pack(Context& context) { return weight_.Pack(context); }

  /// [rows, in] -> [rows, out], compute type.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x) const;

  /// y = x Wᵀ + b, not recorded.
  Result<Tensor> Apply(Context& context, Component component, const Tensor& x) const;
  /// dy W in a new tensor.
  Result<Tensor> InputGradient(Context& context, const Tensor& dy) const;
  /// Adds the gradients of W and b; the last word on both from the use that Use announced.
  Status AddWeightGradient(Context& context, Tape& tape, const Tensor& x, const Tensor& dy) const;
  /// Announces a use of W and b in the forward pass.
  void Use(Tape& tape) const;

 private:
  const ParameterSet* parameters_;
  PackedParameter weight_;
  int64_t bias_;
  int64_t in_features_;
  int64_t out_features_;
};

/// y = Linear(GELU(x)). Keeps x only; GELU(x) is computed again in the backward pass, in the same
/// sweep as its derivative.
Result<Value> GeluLinear(Context& context, Tape& tape, const Linear& linear, const Value& x);

}  // namespace weft::engine
