#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs, except that `y` may not be `x`
/// or `dy`.
template <class T>
struct UnitLoops {
  struct Form {
    void (*forward)(const T* x, T* y, int64_t count);
    void (*backward)(const T* dy, const T* x, T* dx, T* y, int64_t count);
  };
  Form tanh;
  Form erf;
  Form relu;
  Form silu;
};
using UnitKernels = FloatTypes<UnitLoops>;

WEFT_ISA_TABLE(UnitKernels)

}  // namespace weft::kernels::cpu
