#pragma once

#include <cstdint>

#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products with a weight W [out, in] that is never made, but what its tensors make. Of the compute
/// type; x [n, in] and y [n, out] may be columns of larger matrices.
class StructuredWeight {
 public:
  virtual ~StructuredWeight() = default;

  virtual Status Pack(Context& context, Repack what) = 0;

  /// y = x Wᵀ + bias.
  virtual Status Forward(Context& context, const Tensor& x, const TensorView& bias,
                         const Tensor& y) const = 0;

  /// Columns of what is between the tensors on the way from x to y; 0: there is nothing.
  virtual int64_t Middle() const = 0;
  /// The gradient of that, [n, Middle()], from that of y.
  virtual Status MiddleGradient(Context& context, const Tensor& dy,
                                const Tensor& dmiddle) const = 0;

  /// dx = dy W, or +=.
  virtual Status InputGradient(Context& context, const Tensor& dy, const Tensor& dmiddle,
                               const Tensor& dx, bool accumulate) const = 0;
  /// The gradients of the tensors and the bias that `to` has a place for.
  virtual Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                                const Tensor& dmiddle, const WeightGradientTarget& to) const = 0;
};

}  // namespace weft::engine
