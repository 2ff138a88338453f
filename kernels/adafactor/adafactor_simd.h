#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// What is done to a gradient before the rule sees it.
struct AdafactorGradient {
  const float* data;
  float scale;
  float limit;
};

/// All work on one row.
struct AdafactorKernels {
  /// Adds g^2 to column_sums; returns the sum of g^2.
  double (*squares)(const AdafactorGradient& gradient, int64_t columns, float* column_sums);
  /// Sum of (g column_factors)^2.
  double (*update_squares)(const AdafactorGradient& gradient, const float* column_factors,
                           int64_t columns);
  /// parameter = decay parameter - size g column_factors.
  void (*apply)(const AdafactorGradient& gradient, const float* column_factors, float decay,
                float size, int64_t columns, float* parameter);
};

WEFT_ISA_TABLE(AdafactorKernels)

}  // namespace weft::kernels::cpu
