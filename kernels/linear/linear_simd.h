#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

template <class T>
struct ColumnSumsLoop {
  /// sums[c] (+)= sum over rows of x[r * stride + c], for columns [0, columns), rows in order.
  void (*run)(const T* x, int64_t rows, int64_t stride, int64_t columns, bool accumulate,
              float* sums);
};
using LinearKernels = FloatTypes<ColumnSumsLoop>;

WEFT_ISA_TABLE(LinearKernels)

}  // namespace weft::kernels::cpu
