#pragma once

// GELU and its derivative at a point, on a device.

#include "kernels/activation/gelu_constants.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

// What gelu_vec.h says of its structs of the same names holds here too.
struct TanhGelu {
  float above, near, e, s;

  __device__ explicit TanhGelu(float x) {
    // Comparisons keep a NaN, which fminf would lose.
    above = x < -10.0f ? -10.0f : x;
    near = above > 10.0f ? 10.0f : above;
    e = expf((near * near * kGeluCubic + 1.0f) * near * -kTwoSqrtTwoOverPi);
    s = __fdividef(1.0f, 1.0f + e);
  }
  __device__ float Value() const { return above * s; }
  __device__ float Derivative() const {
    const float slope = (near * near * (3 * kGeluCubic) + 1.0f) * kTwoSqrtTwoOverPi;
    return near * slope * (e * s * s) + s;
  }
};

struct ErfGelu {
  float above, near, e, below;

  __device__ explicit ErfGelu(float x) {
    above = x < -14.0f ? -14.0f : x;
    near = above > 14.0f ? 14.0f : above;
    const float t = __fdividef(1.0f, fabsf(near) * kNormalTailScale + 1.0f);
    e = expf(near * near * -0.5f);
    float p = kNormalTail7;
    p = p * t + kNormalTail6;
    p = p * t + kNormalTail5;
    p = p * t + kNormalTail4;
    p = p * t + kNormalTail3;
    p = p * t + kNormalTail2;
    p = p * t + kNormalTail1;
    p = p * t + kNormalTail0;
    const float tail = p * t * e;
    below = near < 0.0f ? tail : 1.0f - tail;
  }
  __device__ float Value() const { return above * below; }
  __device__ float Derivative() const { return near * e * kInverseSqrtTwoPi + below; }
};

}  // namespace weft::kernels::cuda
