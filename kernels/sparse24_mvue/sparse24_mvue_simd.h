#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"

namespace weft::kernels::cpu {

/// Where a group of rows takes its words from: see MvueArgs.
struct MvueStream {
  MvueDraw draw;
  PhiloxKey key;
  int64_t group;
  int64_t first_column, all_columns;
};

/// Loops over one group of rows. y may be x.
template <class T>
struct MvueLoops {
  void (*run)(const MvueStream& stream, const T* x, int64_t x_stride, T* y, int64_t y_stride,
              int64_t columns);
};
using MvueKernels = FloatTypes<MvueLoops>;

WEFT_ISA_TABLE(MvueKernels)

}  // namespace weft::kernels::cpu
