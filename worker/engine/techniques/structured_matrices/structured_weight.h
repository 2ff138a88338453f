#pragma once

#include <cstdint>

#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products with a weight W [out, in] that is never materialised: they use the tensors in its
/// place. x [n, in] and y [n, out] are of the compute type, and may be columns of larger matrices.
class StructuredWeight {
 public:
  virtual ~StructuredWeight() = default;

  virtual Status Pack(Context& context, Repack what) = 0;

  /// y = x Wᵀ + bias.
  virtual Status Forward(Context& context, const Tensor& x, const TensorView& bias,
                         const Tensor& y) const = 0;

  /// Columns of the intermediate result, from which the last tensor makes y; 0: there is none.
  virtual int64_t Middle() const = 0;
  /// Its gradient [n, Middle()] from that of y.
  virtual Status MiddleGradient(Context& context, const Tensor& dy,
                                const Tensor& dmiddle) const = 0;

  /// dx = dy W, or dx += dy W.
  virtual Status InputGradient(Context& context, const Tensor& dy, const Tensor& dmiddle,
                               const Tensor& dx, bool accumulate) const = 0;
  /// The gradients of the tensors and the bias that `to` has a place for.
  virtual Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                                const Tensor& dmiddle, const WeightGradientTarget& to) const = 0;
};

}  // namespace weft::engine
