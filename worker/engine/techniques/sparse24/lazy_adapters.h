#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products of a layer whose weights W have low-rank adapters besides in the last steps (SLoPe,
/// Mozaffari et al. 2025, arXiv 2405.16325): y = x Wᵀ + b + (x Aᵀ) Bᵀ, with A [rank, in] and
/// B [out, rank] of each output. Before these steps they are the products of W alone, and the
/// adapters have zeros as their gradients. What is between A and B is computed again in the
/// backward pass.
/// A tensor-parallel rank has the part of A or of B that goes with its part of W, and all of the
/// other one, whose gradient is a partial sum on each rank.
class LazyAdapterProducts : public WeightProducts {
 public:
  /// `of_weights`: the products of W. `active`, which outlives this, says whether the step has the
  /// adapters; it may change between passes.
  LazyAdapterProducts(const LinearLayer& layer, std::unique_ptr<WeightProducts> of_weights,
                      const bool* active);

  bool Fuses(kernels::ProductActivation activation) const override {
    return !*active_ && of_weights_->Fuses(activation);
  }
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
  /// The adapter of one output.
  struct Adapter {
    int64_t column = 0;  ///< The first of its columns of y.
    int64_t columns = 0;
    int64_t rank = 0;
    PackedParameter a, b;
  };
  /// x Aᵀ [rows, rank].
  Result<Tensor> Middle(Context& context, const Adapter& adapter, const Tensor& x) const;
  /// Its gradient dy B.
  Result<Tensor> MiddleGradient(Context& context, const Adapter& adapter, const Tensor& dy) const;
  Status AdapterGradient(Context& context, const Adapter& adapter, const Tensor& x,
                         const Tensor& dy, const WeightGradientTarget& to) const;

  std::unique_ptr<WeightProducts> of_weights_;
  const bool* active_;
  DType compute_;
  std::vector<Adapter> adapters_;  ///< By output.
};

}  // namespace weft::engine
