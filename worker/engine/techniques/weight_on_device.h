#pragma once

#include "worker/engine/nn/products.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// The stacked weights of a layer for kernels of the device. A CUDA device has a copy of those in
/// the host memory pool, which lives as long as this; sharded ones have been brought.
class WeightOnDevice {
 public:
  /// A copy is of float type `type`; what the device holds stays as it is. kExhausted without
  /// memory for it.
  static Result<WeightOnDevice> Of(Context& context, const LinearLayer& layer, DType type);

  const TensorView& view() const { return view_; }  ///< [out, in]

 private:
  TensorView view_;
  Tensor copy_;
};

}  // namespace weft::engine
