#include "kernels/moe_combine/moe_combine_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class T>
void Combine(const T* const* rows, const float* weights, int64_t count, T* y, int64_t width) {
  for (int64_t c = 0; c < width; c += kLanes) {
    const int64_t left = width - c;
    VecF sum = Set(0.0f);
    for (int64_t i = 0; i < count; ++i) {
      sum = Fma(Set(weights[i]), LoadUpTo(rows[i] + c, left), sum);
    }
    StoreUpTo(y + c, sum, left);
  }
}

template <class T>
float Backward(const T* dy, const T* x, float weight, T* dx, int64_t width) {
  const VecF factor = Set(weight);
  VecF sum = Set(0.0f);
  for (int64_t c = 0; c < width; c += kLanes) {
    const int64_t left = width - c;
    const VecF gradient = LoadUpTo(dy + c, left);
    sum = Fma(gradient, LoadUpTo(x + c, left), sum);
    StoreUpTo(dx + c, factor * gradient, left);
  }
  return ReduceAdd(sum);
}

template <class T>
constexpr MoeCombineLoops<T> kLoops = {Combine<T>, Backward<T>};

}  // namespace

const MoeCombineKernels kMoeCombineKernels = {
    .f32 = kLoops<float>,
    .bf16 = kLoops<BFloat16>,
    .f16 = kLoops<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
