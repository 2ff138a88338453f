#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Elements are dropped where the upper 24 bits of their word are below `threshold`, and multiplied
/// by `scale` otherwise. `block` is the Philox block of element 0. y may be x.
struct DropoutDraw {
  PhiloxKey key;
  int32_t threshold;
  float scale;
};
template <class T>
struct DropoutLoop {
  void (*run)(const DropoutDraw& draw, uint64_t block, const T* x, T* y, int64_t count);
};
using DropoutKernels = FloatTypes<DropoutLoop>;

WEFT_ISA_TABLE(DropoutKernels)

}  // namespace weft::kernels::cpu
