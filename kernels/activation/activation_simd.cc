#include "kernels/activation/activation_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

constexpr float kTwoSqrtTwoOverPi = 1.5957691216f;
constexpr float kCubic = 0.044715f;

// With (1 + tanh(u)) / 2 = sigmoid(2u) = s: GELU(x) = x s, u = sqrt(2/pi) (x + kCubic x^3), and
// GELU'(x) = s + x s (1 - s) 2u'. With e = e^-2u, s is 1 / (1 + e) and 1 - s is e s, without
// cancellation. The relative error of e is 2e-7 and that of rounding 2u: below 5e-7 where |x| < 2,
// and s is next to 0 or 1 where it grows. Past +-10, where e could overflow, s is taken at +-10: 1,
// or below 1e-37, with x at -10 so that their product stays next to 0.
struct Sigmoid {
  VecF above;  // x from -10 up
  VecF near;   // x within +-10
  VecF e;
  VecF s;

  WEFT_INLINE explicit Sigmoid(VecF x) : above(Max(Set(-10.0f), x)), near(Min(Set(10.0f), above)) {
    VecF cube = Fma(near * near, Set(kCubic), Set(1.0f)) * near;
    e = Exp(cube * -kTwoSqrtTwoOverPi);
    s = Reciprocal(1.0f + e);
  }

  WEFT_INLINE VecF Gelu() const { return above * s; }

  WEFT_INLINE VecF Derivative() const {
    VecF slope = Fma(near * near, Set(3 * kCubic), Set(1.0f)) * kTwoSqrtTwoOverPi;
    return Fma(near * slope, e * s * s, s);
  }
};

template <class T>
void Forward(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    StoreUpTo(y + i, Sigmoid(LoadUpTo(x + i, count - i)).Gelu(), count - i);
  }
}

template <bool kAgain, class T>
WEFT_INLINE void BackwardLoop(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    Sigmoid sigmoid(LoadUpTo(x + i, count - i));
    StoreUpTo(dx + i, LoadUpTo(dy + i, count - i) * sigmoid.Derivative(), count - i);
    if (kAgain) StoreUpTo(y + i, sigmoid.Gelu(), count - i);
  }
}

template <class T>
void Backward(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  if (y != nullptr) {
    BackwardLoop<true>(dy, x, dx, y, count);
  } else {
    BackwardLoop<false>(dy, x, dx, y, count);
  }
}

}  // namespace

const GeluKernels kGeluKernels = {
    .f32 = {Forward<float>, Backward<float>},
    .bf16 = {Forward<BFloat16>, Backward<BFloat16>},
    .f16 = {Forward<Half>, Backward<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
