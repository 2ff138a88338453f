#include "kernels/activation/activation_simd.h"

#include "kernels/activation/gelu_vec.h"
#include "kernels/activation/silu_vec.h"
#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// How many elements ahead are fetched: the loops do so much with each that the processor sees too
// few of them at a time to keep memory busy.
constexpr int64_t kAhead = 512;

// A NaN goes through the value.
struct Relu {
  VecF x;

  WEFT_INLINE explicit Relu(VecF at) : x(at) {}

  WEFT_INLINE VecF Value() const { return Max(Set(0.0f), x); }
  WEFT_INLINE VecF Derivative() const { return x > 0.0f ? Set(1.0f) : Set(0.0f); }
};

template <class Function, class T>
void Forward(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(x + i + kAhead);
    __builtin_prefetch(y + i + kAhead, 1);
    StoreUpTo(y + i, Function(LoadUpTo(x + i, count - i)).Value(), count - i);
  }
}

template <class Function, bool kAgain, class T>
WEFT_INLINE void BackwardLoop(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(x + i + kAhead);
    __builtin_prefetch(dy + i + kAhead);
    if (kAgain) __builtin_prefetch(y + i + kAhead, 1);
    Function at(LoadUpTo(x + i, count - i));
    StoreUpTo(dx + i, LoadUpTo(dy + i, count - i) * at.Derivative(), count - i);
    if (kAgain) StoreUpTo(y + i, at.Value(), count - i);
  }
}

template <class Function, class T>
void Backward(const T* dy, const T* x, T* dx, T* y, int64_t count) {
  if (y != nullptr) {
    BackwardLoop<Function, true>(dy, x, dx, y, count);
  } else {
    BackwardLoop<Function, false>(dy, x, dx, y, count);
  }
}

template <class T>
constexpr UnitLoops<T> kLoops = {.tanh = {Forward<TanhGelu, T>, Backward<TanhGelu, T>},
                                 .erf = {Forward<ErfGelu, T>, Backward<ErfGelu, T>},
                                 .relu = {Forward<Relu, T>, Backward<Relu, T>},
                                 .silu = {Forward<Silu, T>, Backward<Silu, T>}};

}  // namespace

const UnitKernels kUnitKernels = {
    .f32 = kLoops<float>,
    .bf16 = kLoops<BFloat16>,
    .f16 = kLoops<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
