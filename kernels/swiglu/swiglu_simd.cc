#include "kernels/swiglu/swiglu_simd.h"

#include "kernels/activation/gelu_vec.h"
#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

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

template <class Function, class T>
void Forward(const T* gate, const T* up, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    StoreUpTo(y + i, Function(LoadUpTo(gate + i, left)).Value() * LoadUpTo(up + i, left), left);
  }
}

template <class Function, class T>
void Backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Function at(LoadUpTo(gate + i, left));
    const VecF d = LoadUpTo(dy + i, left), factor = LoadUpTo(up + i, left);
    const VecF value = at.Value();
    StoreUpTo(dgate + i, d * factor * at.Derivative(), left);
    StoreUpTo(dup + i, d * value, left);
    if (y != nullptr) StoreUpTo(y + i, value * factor, left);
  }
}

template <class T>
constexpr SwiGluLoops<T> kLoops = {.silu = {Forward<Silu, T>, Backward<Silu, T>},
                                   .gelu = {Forward<TanhGelu, T>, Backward<TanhGelu, T>},
                                   .erf_gelu = {Forward<ErfGelu, T>, Backward<ErfGelu, T>}};

}  // namespace

const SwiGluKernels kSwiGluKernels = {
    .f32 = kLoops<float>,
    .bf16 = kLoops<BFloat16>,
    .f16 = kLoops<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
