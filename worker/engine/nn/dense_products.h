#pragma once

#include <span>

#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products whose operands are of the compute type, f32, bf16 or f16: with W as a PackedParameter.
class DenseProducts : public WeightProducts {
 public:
  explicit DenseProducts(const LinearLayer& layer);

  Status Pack(Context& context, Repack what) override;
  /// Frees the copies of the weights, until the next Pack. Products of the weights are then those
  /// of others; WeightGradient reads none.
  void Release() { weight_.Release(); }
  /// After Pack.
  const kernels::PackedWeight* packed() const { return weight_.packed(); }
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  TensorView Bias() const;

  const ParameterSet* parameters_;
  PackedParameter weight_;
  int64_t outputs_;
  int64_t bias_;  ///< Of the first output, that is added in the forward pass; or -1.
};

}  // namespace weft::engine
