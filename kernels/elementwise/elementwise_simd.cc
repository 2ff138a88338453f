#include "kernels/elementwise/elementwise_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class In, class Out>
void Convert(const In* x, Out* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(x + i));
  if (i < count) StorePart(y + i, LoadPart(x + i, count - i), count - i);
}

template <class T>
void Add(const T* a, const T* b, T* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(a + i) + Load(b + i));
  if (i < count) {
    StorePart(y + i, LoadPart(a + i, count - i) + LoadPart(b + i, count - i), count - i);
  }
}

template <class T>
void Scale(T* x, float factor, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(x + i, Load(x + i) * factor);
  if (i < count) StorePart(x + i, LoadPart(x + i, count - i) * factor, count - i);
}

}  // namespace

const ElementwiseKernels kElementwiseKernels = {
    .to_bf16 = Convert<float, BFloat16>,
    .to_f32 = Convert<BFloat16, float>,
    .add_f32 = Add<float>,
    .add_bf16 = Add<BFloat16>,
    .scale_f32 = Scale<float>,
    .scale_bf16 = Scale<BFloat16>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
