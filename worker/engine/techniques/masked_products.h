#pragma once

#include <memory>
#include <span>

#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/dense_products.h"

namespace weft::engine {

/// Dense products of masked inputs: y = (c x) Wᵀ + b with a mask c of the columns of x, and x Wᵀ +
/// b once it masks none.
class MaskedProducts : public WeightProducts {
 public:
  /// `mask` outlives this.
  MaskedProducts(const LinearLayer& layer, const ColumnMask* mask) : mask_(mask), dense_(layer) {}

  Status Pack(Context& context, Repack what) override { return dense_.Pack(context, what); }
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override {
    return dense_.Prepare(context, std::move(dy), use);
  }
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  /// x times the mask, in the workspace where there is something to do.
  Result<Tensor> Masked(Context& context, const Tensor& x) const;

  const ColumnMask* mask_;
  DenseProducts dense_;
};

}  // namespace weft::engine
