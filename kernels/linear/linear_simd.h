#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

template <class T>
struct LinearLoops {
  /// sums[c] (+)= sum over rows of x[r * stride + c], for columns [0, columns), rows in order.
  void (*column_sums)(const T* x, int64_t rows, int64_t stride, int64_t columns, bool accumulate,
                      float* sums);

  /// y[o] = bias[o] + sum over k of x[k] * weight[o * stride + k], for o in [0, out) and k in
  /// [0, in); `bias` may be null. Reads each weight once, as it is stored.
  void (*row_product)(const float* x, const T* weight, int64_t stride, int64_t out, int64_t in,
                      const float* bias, float* y);
};
using LinearKernels = FloatTypes<LinearLoops>;

WEFT_ISA_TABLE(LinearKernels)

}  // namespace weft::kernels::cpu
