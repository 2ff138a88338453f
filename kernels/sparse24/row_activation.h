#pragma once

// Activations of rows that a thread has in its cache.

#include <cstdint>

#include "kernels/activation/activation_simd.h"
#include "kernels/activation/product_activation.h"
#include "kernels/activation/squared_relu_loops.h"
#include "kernels/swiglu/swiglu_simd.h"

namespace weft::kernels::cpu {

/// An activation of parts of rows, in the loops and so with the bits of the operations of
/// kernels/activation and kernels/swiglu. For the instruction set that was active when it was made.
template <class T>
class RowActivation {
 public:
  explicit RowActivation(ProductActivation activation) {
    if (IsGated(activation)) {
      gated_ = &PickSwiGluKernels().Of<T>().Of(GateOf(activation));
    } else if (activation != ProductActivation::kSquaredRelu) {
      const UnitLoops<T>& loops = PickUnitKernels().Of<T>();
      gelu_ = GeluFormOf(activation) == GeluForm::kErf ? &loops.erf : &loops.tanh;
    }
  }

  /// y = activation(x), where `up` has the other factor of a gated one.
  void Forward(const T* x, const T* up, T* y, int64_t count) const {
    if (gated_ != nullptr) {
      gated_->forward(x, up, y, count);
    } else if (gelu_ != nullptr) {
      gelu_->forward(x, y, count);
    } else {
      SquaredReluForwardLoop(x, y, count, false);
    }
  }

  /// From the gradient of y in dx to that of x, and of a gated one that of `up` into dup; y, unless
  /// it is null, becomes activation(x).
  void Backward(const T* x, const T* up, T* dx, T* dup, T* y, int64_t count) const {
    if (gated_ != nullptr) {
      gated_->backward(dx, x, up, dx, dup, y, count);
    } else if (gelu_ != nullptr) {
      gelu_->backward(dx, x, dx, y, count);
    } else {
      SquaredReluBackwardLoop(dx, x, dx, y, count, false);
    }
  }

 private:
  const GatedLoops<T>* gated_ = nullptr;
  const typename UnitLoops<T>::Form* gelu_ = nullptr;
};

}  // namespace weft::kernels::cpu
