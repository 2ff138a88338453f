#include "kernels/activation/activation_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

constexpr float kTwoSqrtTwoOverPi = 1.5957691216f;
constexpr float kCubic = 0.044715f;

// With (1 + tanh(u)) / 2 = sigmoid(2u) = s: GELU(x) = x s, u = sqrt(2/pi) (x + kCubic x^3). Here is
// e^-2u, of which s is 1 / (1 + e^-2u) and 1 - s the rest, without cancellation. Its relative error
// is 2e-7 and that of rounding 2u: below 5e-7 where |x| < 2, and s is next to 0 or 1 where it
// grows.
WEFT_INLINE VecF ExpMinus2U(VecF x) {
  VecF cube = Fma(x * x, Set(kCubic), Set(1.0f)) * x;
  return Exp(cube * -kTwoSqrtTwoOverPi);
}

WEFT_INLINE VecF Gelu(VecF x) {
  return x / (1.0f + ExpMinus2U(x));
}

// s + x s (1 - s) 2u'. Past +-10 the second term is nothing and e^-2u could overflow.
WEFT_INLINE VecF GeluDerivative(VecF x) {
  VecF near = Min(Set(10.0f), Max(Set(-10.0f), x));
  VecF e = ExpMinus2U(near);
  VecF s = 1.0f / (1.0f + e);
  VecF slope = Fma(near * near, Set(3 * kCubic), Set(1.0f)) * kTwoSqrtTwoOverPi;
  return Fma(near * slope, e * s * s, s);
}

template <class T>
void Forward(const T* x, T* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Gelu(Load(x + i)));
  if (i < count) StorePart(y + i, Gelu(LoadPart(x + i, count - i)), count - i);
}

template <class T>
void Backward(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    VecF at = Load(x + i);
    Store(dx + i, Load(dy + i) * GeluDerivative(at));
    if (y != nullptr) Store(y + i, Gelu(at));
  }
  if (i < count) {
    VecF at = LoadPart(x + i, count - i);
    StorePart(dx + i, LoadPart(dy + i, count - i) * GeluDerivative(at), count - i);
    if (y != nullptr) StorePart(y + i, Gelu(at), count - i);
  }
}

}  // namespace

const GeluKernels kGeluKernels = {
    .forward_f32 = Forward<float>,
    .forward_bf16 = Forward<BFloat16>,
    .backward_f32 = Backward<float>,
    .backward_bf16 = Backward<BFloat16>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
