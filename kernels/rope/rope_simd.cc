#include "kernels/rope/rope_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class T>
void Rotate(T* x, const float* cosines, const float* sines, float sign, int64_t heads,
            int64_t half) {
  for (int64_t head = 0; head < heads; ++head) {
    T* first = x + head * 2 * half;
    T* second = first + half;
    for (int64_t j = 0; j < half; j += kLanes) {
      const int64_t count = half - j;
      VecF a = LoadUpTo(first + j, count), b = LoadUpTo(second + j, count);
      VecF cosine = LoadUpTo(cosines + j, count), sine = LoadUpTo(sines + j, count) * sign;
      StoreUpTo(first + j, Fma(a, cosine, -b * sine), count);
      StoreUpTo(second + j, Fma(b, cosine, a * sine), count);
    }
  }
}

}  // namespace

const RopeKernels kRopeKernels = {
    .f32 = {Rotate<float>},
    .bf16 = {Rotate<BFloat16>},
    .f16 = {Rotate<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
