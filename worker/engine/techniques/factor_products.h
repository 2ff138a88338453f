#pragma once

#include <cstdint>
#include <memory>

#include "common/status.h"
#include "kernels/linear/linear.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

// Products of a matrix W [out, in] whose value is made of two factors, E [inner, out] and
// F [inner, in], once a step: in f32, whatever the factors are stored as. They count their work.

/// W = E^T F, or W += E^T F.
Status MultiplyFactors(Context& context, const TensorView& out_factor, const TensorView& in_factor,
                       const TensorView& weight, bool accumulate);

/// A matrix as f32: itself, or a copy in workspace that `storage` holds.
Result<TensorView> InF32(Context& context, const TensorView& matrix, Tensor& storage);

/// The gradient of W, packed for the products that carry it to the factors. Keeps its memory from
/// one matrix to the next of the same shape.
class PackedGradient {
 public:
  /// kExhausted where there is no memory.
  Status Pack(Context& context, const TensorView& gradient);

  /// dE = F dW^T, f32.
  Status ToOutFactor(Context& context, const TensorView& in_factor,
                     const TensorView& gradient) const;
  /// dF = E dW, f32.
  Status ToInFactor(Context& context, const TensorView& out_factor,
                    const TensorView& gradient) const;

 private:
  std::unique_ptr<kernels::PackedWeight> packed_;
  ExternalBytes held_;
};

}  // namespace weft::engine
