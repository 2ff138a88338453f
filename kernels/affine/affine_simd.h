#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// Pointers to contiguous rows [rows, width] and to [width] factors and terms; see affine.h.
/// Optional ones may be null.
template <class T>
struct AffineForwardRows {
  const T* x;
  const float* scale;  ///< or null
  const float* shift;  ///< or null
  T* y;
};

template <class T>
struct AffineBackwardRows {
  const T* dy;
  const T* x;          ///< with dscale
  const float* scale;  ///< or null
  T* dx;               ///< or null
  float* dscale;       ///< [width], added to; or null
  float* dshift;       ///< [width], added to; or null
};

/// Rows [begin, end).
template <class T>
struct AffineLoops {
  void (*forward)(const AffineForwardRows<T>&, int64_t begin, int64_t end, int64_t width);
  void (*backward)(const AffineBackwardRows<T>&, int64_t begin, int64_t end, int64_t width);
};
using AffineKernels = FloatTypes<AffineLoops>;

WEFT_ISA_TABLE(AffineKernels)

}  // namespace weft::kernels::cpu
