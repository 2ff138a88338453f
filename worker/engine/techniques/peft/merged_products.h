#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/linear/linear.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/peft/merged_weight.h"

namespace weft::engine {

/// Products of a layer some of whose weights have adapters that are merged into them: y = x W'ᵀ +
/// b, W' = f(W, tensors) (MergedWeight). W' is made when weights are packed or, where values are
/// brought unit by unit, when they have come; products are those of a dense layer. Gradients of the
/// tensors follow from dW' = dyᵀ x by the chain rule, so a layer has one more product in the
/// backward pass than a frozen one.
class MergedProducts : public WeightProducts {
 public:
  MergedProducts(const LinearLayer& layer, const PeftSpec& spec);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  /// One output of the layer.
  struct Output {
    int64_t column = 0;
    int64_t columns = 0;
    int64_t weight = 0;                         ///< Its index.
    std::unique_ptr<MergedWeight> merged = {};  ///< None: it has no adapter.
    double flops = 0;                           ///< Of making what the adapter adds.
  };
  class MergedCopy;
  /// Makes all of W', [out, in] f32.
  Status Merge(Context& context, const Tensor& merged) const;

  const ParameterSet* parameters_;
  DType compute_;
  int64_t in_;
  int64_t out_ = 0;
  int64_t bias_;  ///< Index of the first bias, which Forward adds; or -1.
  std::vector<Output> outputs_;
  std::shared_ptr<MergedCopy> copy_;
};

}  // namespace weft::engine
