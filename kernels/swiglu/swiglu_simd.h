#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/swiglu/swiglu.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs as swiglu.h says, y may be null in
/// the backward pass.
template <class T>
struct GatedLoops {
  void (*forward)(const T* gate, const T* up, T* y, int64_t count);
  void (*backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count);
};

/// Those of each GateFunction.
template <class T>
struct SwiGluLoops {
  GatedLoops<T> silu;
  GatedLoops<T> gelu;
  GatedLoops<T> erf_gelu;

  const GatedLoops<T>& Of(GateFunction function) const {
    switch (function) {
      case GateFunction::kGelu:
        return gelu;
      case GateFunction::kErfGelu:
        return erf_gelu;
      default:
        return silu;
    }
  }
};
using SwiGluKernels = FloatTypes<SwiGluLoops>;

WEFT_ISA_TABLE(SwiGluKernels)

}  // namespace weft::kernels::cpu
