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

template <class T>
void AddScaled(const T* x, float factor, float keep, float* y, int64_t count) {
  const bool read = keep != 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto term = Load(x + i) * factor;
    Store(y + i, read ? Load(y + i) * keep + term : term);
  }
  if (i == count) return;
  const auto term = LoadPart(x + i, count - i) * factor;
  StorePart(y + i, read ? LoadPart(y + i, count - i) * keep + term : term, count - i);
}

// The compiler widens the mask, whatever vectors there are.
template <class T>
void ApplyMask(const uint8_t* mask, T* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = mask[i] != 0 ? x[i] : T{};
}

}  // namespace

template <class T>
constexpr ElementwiseLoops<T> kLoopsOf = {Convert<float, T>, Convert<T, float>, Add<T>,
                                          Scale<T>,          AddScaled<T>,      ApplyMask<T>};

const ElementwiseKernels kElementwiseKernels = {
    .f32 = kLoopsOf<float>,
    .bf16 = kLoopsOf<BFloat16>,
    .f16 = kLoopsOf<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
