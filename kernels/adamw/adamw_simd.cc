#include "kernels/adamw/adamw_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

WEFT_INLINE void UpdateVector(const AdamWFactors& f, const float* gradient, float* parameter,
                              float* first_moment, float* second_moment, int64_t count) {
  VecF g = LoadUpTo(gradient, count) * f.gradient_scale;
  VecF m = LoadUpTo(first_moment, count), v = LoadUpTo(second_moment, count);
  m = Fma(m - g, Set(f.beta1), g);
  VecF g2 = g * g;
  v = Fma(v - g2, Set(f.beta2), g2);
  VecF denominator = Fma(Sqrt(v), Set(f.variance_scale), Set(f.epsilon));
  VecF p = LoadUpTo(parameter, count) * f.decay - m * f.step_size / denominator;
  StoreUpTo(first_moment, m, count);
  StoreUpTo(second_moment, v, count);
  StoreUpTo(parameter, p, count);
}

void Update(const AdamWFactors& factors, float* parameter, const float* gradient,
            float* first_moment, float* second_moment, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    UpdateVector(factors, gradient + i, parameter + i, first_moment + i, second_moment + i, kLanes);
  }
  if (i < count) {
    UpdateVector(factors, gradient + i, parameter + i, first_moment + i, second_moment + i,
                 count - i);
  }
}

}  // namespace

const AdamWKernels kAdamWKernels = {.update = Update};

}  // namespace weft::kernels::cpu::WEFT_ISA
