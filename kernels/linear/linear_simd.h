#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

struct LinearKernels {
  /// sums[c] (+)= sum over rows of x[r * stride + c], for columns [0, columns), rows in order.
  void (*column_sums_f32)(const float* x, int64_t rows, int64_t stride, int64_t columns,
                          bool accumulate, float* sums);
  void (*column_sums_bf16)(const BFloat16* x, int64_t rows, int64_t stride, int64_t columns,
                           bool accumulate, float* sums);
};

WEFT_ISA_TABLE(LinearKernels)

}  // namespace weft::kernels::cpu
