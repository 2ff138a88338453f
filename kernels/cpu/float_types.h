#pragma once

#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// The inner loops of an operation for each type that activations are stored in.
template <template <class> class Kernels>
struct FloatTypes {
  Kernels<float> f32;
  Kernels<BFloat16> bf16;
  Kernels<Half> f16;

  template <class T>
  const Kernels<T>& Of() const {
    if constexpr (kDTypeOf<T> == DType::kF32) {
      return f32;
    } else if constexpr (kDTypeOf<T> == DType::kBF16) {
      return bf16;
    } else {
      return f16;
    }
  }
};

using weft::WithFloatType;

}  // namespace weft::kernels::cpu
