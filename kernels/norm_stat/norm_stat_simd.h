#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

struct NormStatKernels {
  /// Sum of squares in f64 and number of NaN or infinite elements of one block.
  void (*block)(const float* x, int64_t count, double* sum_of_squares, int64_t* non_finite);
};

WEFT_ISA_TABLE(NormStatKernels)

}  // namespace weft::kernels::cpu
