#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"

namespace weft::kernels::cpu {

/// Of one group of rows: `block` is the Philox block of its column 0. y may be x.
template <class T>
struct MvueLoops {
  void (*run)(MvueDraw draw, const PhiloxKey& key, uint64_t block, const T* x, int64_t x_stride,
              T* y, int64_t y_stride, int64_t columns);
};
using MvueKernels = FloatTypes<MvueLoops>;

WEFT_ISA_TABLE(MvueKernels)

}  // namespace weft::kernels::cpu
