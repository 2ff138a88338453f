#pragma once

// GELU and its derivative at a vector of points.

#include "kernels/activation/gelu_constants.h"
#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {

// With (1 + tanh(u)) / 2 = sigmoid(2u) = s: GELU(x) = x s, u = sqrt(2/pi) (x + kGeluCubic x^3), and
// GELU'(x) = s + x s (1 - s) 2u'. With e = e^-2u, s is 1 / (1 + e) and 1 - s is e s, without
// cancellation. The relative error of e is 2e-7 and that of rounding 2u: below 5e-7 where |x| < 2,
// and s is next to 0 or 1 where it grows. Past +-10, where e could overflow, s is taken at +-10: 1,
// or below 1e-37, with x at -10 so that their product stays next to 0. A NaN goes past e: through
// x.
struct TanhGelu {
  VecF above;  // x from -10 up
  VecF near;   // x within +-10
  VecF e;
  VecF s;

  WEFT_INLINE explicit TanhGelu(VecF x) : above(Max(Set(-10.0f), x)), near(Min(Set(10.0f), above)) {
    VecF cube = Fma(near * near, Set(kGeluCubic), Set(1.0f)) * near;
    e = ExpWithin87(cube * -kTwoSqrtTwoOverPi);
    s = Reciprocal(1.0f + e);
  }

  WEFT_INLINE VecF Value() const { return above * s; }

  WEFT_INLINE VecF Derivative() const {
    VecF slope = Fma(near * near, Set(3 * kGeluCubic), Set(1.0f)) * kTwoSqrtTwoOverPi;
    return Fma(near * slope, e * s * s, s);
  }
};

// GELU(x) = x Phi(x) and GELU'(x) = Phi(x) + x phi(x), with Phi by its tail (gelu_constants.h).
struct ErfGelu {
  VecF above;  // x from -14 up
  VecF near;   // x within +-14
  VecF e;      // e^(-x^2/2)
  VecF below;  // Phi(x)

  WEFT_INLINE explicit ErfGelu(VecF x) : above(Max(Set(-14.0f), x)), near(Min(Set(14.0f), above)) {
    VecF t = Reciprocal(Fma(Abs(near), Set(kNormalTailScale), Set(1.0f)));
    e = Exp(near * near * -0.5f);
    VecF p = Set(kNormalTail7);
    p = Fma(p, t, Set(kNormalTail6));
    p = Fma(p, t, Set(kNormalTail5));
    p = Fma(p, t, Set(kNormalTail4));
    p = Fma(p, t, Set(kNormalTail3));
    p = Fma(p, t, Set(kNormalTail2));
    p = Fma(p, t, Set(kNormalTail1));
    p = Fma(p, t, Set(kNormalTail0));
    VecF tail = p * t * e;
    below = near < 0.0f ? tail : 1.0f - tail;
  }

  WEFT_INLINE VecF Value() const { return above * below; }

  WEFT_INLINE VecF Derivative() const { return Fma(near * e, Set(kInverseSqrtTwoPi), below); }
};

}  // namespace weft::kernels::cpu::WEFT_ISA
