#include "kernels/swiglu/swiglu_simd.h"

#include "kernels/activation/gelu_vec.h"
#include "kernels/activation/silu_vec.h"
#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

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
