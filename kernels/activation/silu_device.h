#pragma once

// SiLU and its derivative at a point, on a device.

#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

// What silu_vec.h says of its struct of the same name holds here too.
struct Silu {
  float above, near, e, s;

  __device__ explicit Silu(float x) {
    // Comparisons keep a NaN, which fminf and fmaxf would lose.
    above = x < -80.0f ? -80.0f : x;
    near = above > 80.0f ? 80.0f : above;
    e = expf(-near);
    s = __fdividef(1.0f, 1.0f + e);
  }
  __device__ float Value() const { return above * s; }
  __device__ float Derivative() const { return near * (e * s * s) + s; }
};

}  // namespace weft::kernels::cuda
