#include "kernels/rms_norm/rms_norm_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Calls fn(column, count) for whole vectors (count == kLanes), then for the rest of the row.
template <class Fn>
WEFT_INLINE void ForColumns(int64_t width, Fn fn) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) fn(c, kLanes);
  if (c < width) fn(c, width - c);
}

template <class T>
void Forward(const RmsNormForwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* x = a.delta != nullptr ? a.residual_out + row : a.residual + row;
    VecF squares{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          if (a.delta != nullptr) {
            // The norm sees what is stored, so that the backward pass, which reads it, agrees.
            VecF added = LoadUpTo(a.residual + row + c, count) + LoadUpTo(a.delta + row + c, count);
            StoreUpTo(a.residual_out + row + c, added, count);
          }
          VecF value = LoadUpTo(x + c, count);
          squares = Fma(value, value, squares);
        });
    const float mean = ReduceAdd(squares) / static_cast<float>(width);
    const float rrms = 1.0f / __builtin_sqrtf(mean + a.epsilon);
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          // The next row, while nothing waits for memory.
          __builtin_prefetch(a.residual + row + width + c);
          if (a.delta != nullptr) __builtin_prefetch(a.delta + row + width + c);
          VecF normed = LoadUpTo(x + c, count) * rrms;
          StoreUpTo(a.y + row + c, normed * LoadUpTo(a.weight + c, count), count);
        });
    a.rrms[r] = rrms;
  }
}

template <class T>
void Backward(const RmsNormBackwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* dy = a.dy + row;
    const T* x = a.x + row;
    const float rrms = a.rrms[r];
    // With g = dy * weight and normed = x / RMS: dx = (g - normed avg(g normed)) / RMS.
    VecF sum_gx{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF d = LoadUpTo(dy + c, count);
          VecF normed = LoadUpTo(x + c, count) * rrms;
          sum_gx = Fma(d * LoadUpTo(a.weight + c, count), normed, sum_gx);
          StoreUpTo(a.dweight + c, Fma(d, normed, LoadUpTo(a.dweight + c, count)), count);
        });
    const float mean_gx = ReduceAdd(sum_gx) / static_cast<float>(width);
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF normed = LoadUpTo(x + c, count) * rrms;
          VecF g = LoadUpTo(dy + c, count) * LoadUpTo(a.weight + c, count);
          VecF dx = (g - normed * mean_gx) * rrms;
          if (a.dresidual != nullptr) dx += LoadUpTo(a.dresidual + row + c, count);
          StoreUpTo(a.dx + row + c, dx, count);
        });
  }
}

}  // namespace

const RmsNormKernels kRmsNormKernels = {
    .f32 = {Forward<float>, Backward<float>},
    .bf16 = {Forward<BFloat16>, Backward<BFloat16>},
    .f16 = {Forward<Half>, Backward<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
