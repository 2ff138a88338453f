#pragma once

#include <cstdint>

#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/structured_matrices/block_diagonal.h"
#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"

namespace weft::engine {

/// Products with a Monarch matrix W [out, in] (Dao et al. 2022, arXiv 2204.00595), which is never
/// made: with its two block-diagonal factors, and a permutation of columns between them. Its layout
/// is that of MonarchSizes.
class Monarch {
 public:
  /// Parameters `first` and the next one are the factors. `parameters` outlives this.
  Monarch(ParameterSet* parameters, int64_t first, const MonarchSizes& size, DType compute);

  Status Pack(Context& context, Repack what);

  /// y = x Wᵀ + bias.
  Status Forward(Context& context, const Tensor& x, const TensorView& bias, const Tensor& y) const;

  /// The gradient of what the first factor makes, [n, Middle()], from that of y.
  Status MiddleGradient(Context& context, const Tensor& dy, const Tensor& dmiddle) const;
  /// dx = dy W, or +=, from the gradient in the middle.
  Status InputGradient(Context& context, const Tensor& dmiddle, const Tensor& dx,
                       bool accumulate) const {
    return first_.InputGradient(context, dmiddle, dx, accumulate);
  }
  /// The gradients of the factors and the bias that `to` has a place for.
  Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dmiddle,
                        const WeightGradientTarget& to) const;

  int64_t Middle() const { return first_.Out(); }

 private:
  /// What the second factor reads.
  Result<Tensor> MiddleOf(Context& context, const Tensor& x) const;

  int64_t blocks_;
  BlockDiagonal first_;
  BlockDiagonal second_;
};

}  // namespace weft::engine
