#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/dropout/dropout_draw.h"

namespace weft::kernels::cpu {

/// `block` is the Philox block of element 0. y may be x.
template <class T>
struct DropoutLoop {
  void (*run)(const DropoutDraw& draw, uint64_t block, const T* x, T* y, int64_t count);
};
using DropoutKernels = FloatTypes<DropoutLoop>;

WEFT_ISA_TABLE(DropoutKernels)

}  // namespace weft::kernels::cpu
