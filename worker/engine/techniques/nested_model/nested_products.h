#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Dense products of the first layer of an MLP, whose neurons after the first ones a nested network
/// does without: where that is selected its results y are zero there, and so is their gradient.
/// Activations are zero at zero, so the neurons add nothing, and their weights have no gradient.
class NestedProducts : public WeightProducts {
 public:
  /// Keeps those of the first `neurons` of each output that `layer` has. `selected` outlives this.
  NestedProducts(const LinearLayer& layer, int64_t neurons, const bool* selected);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  /// Overwrites dy, which nobody else reads, where the nested network is selected.
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  /// Zeros of the columns of y that are masked.
  Status Mask(Context& context, const Tensor& y) const;

  DenseProducts dense_;
  const bool* selected_;
  std::vector<float> kept_;  ///< By column of y, 1 or 0.
  Tensor mask_;              ///< The same in the memory of the device.
};

}  // namespace weft::engine
