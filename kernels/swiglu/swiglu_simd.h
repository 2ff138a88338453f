#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Loops over `count` contiguous elements; outputs may be inputs as swiglu.h says, y may be null in
/// the backward pass.
template <class T>
struct SwiGluLoops {
  void (*forward)(const T* gate, const T* up, T* y, int64_t count);
  void (*backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count);
};
using SwiGluKernels = FloatTypes<SwiGluLoops>;

WEFT_ISA_TABLE(SwiGluKernels)

}  // namespace weft::kernels::cpu
