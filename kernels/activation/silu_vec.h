#pragma once

// SiLU and its derivative at a vector of points.

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {

// silu(x) = x s with s = 1 / (1 + e) and e = e^-x; silu'(x) = s + x s (1 - s), where 1 - s is e s
// without cancellation. Past +-80, where e could leave the range of f32, s is taken at +-80: 1, or
// below 1e-34, with x at -80 so that their product stays next to 0. A NaN goes past e: through x.
struct Silu {
  VecF above;  // x from -80 up
  VecF near;   // x within +-80
  VecF e;
  VecF s;

  WEFT_INLINE explicit Silu(VecF x) : above(Max(Set(-80.0f), x)), near(Min(Set(80.0f), above)) {
    e = ExpWithin87(-near);
    s = Reciprocal(1.0f + e);
  }

  WEFT_INLINE VecF Value() const { return above * s; }
  WEFT_INLINE VecF Derivative() const { return Fma(near, e * s * s, s); }
};

}  // namespace weft::kernels::cpu::WEFT_ISA
