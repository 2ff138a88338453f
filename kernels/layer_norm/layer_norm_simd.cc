#include "kernels/layer_norm/layer_norm_simd.h"

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
void Forward(const LayerNormForwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* x = a.residual + row;
    VecF sum{};
    if (a.delta != nullptr) {
      // The norm sees what is stored, so that the backward pass, which reads it, agrees.
      ForColumns(
          width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
            VecF added = LoadUpTo(a.residual + row + c, count) + LoadUpTo(a.delta + row + c, count);
            StoreUpTo(a.residual_out + row + c, added, count);
            sum += LoadUpTo(a.residual_out + row + c, count);
          });
      x = a.residual_out + row;
    } else {
      ForColumns(
          width, [&](int64_t c, int64_t count)
                     __attribute__((always_inline)) { sum += LoadUpTo(x + c, count); });
    }
    const float mean = ReduceAdd(sum) / static_cast<float>(width);
    VecF squares{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          // The next row, while nothing waits for memory.
          __builtin_prefetch(a.residual + row + width + c);
          if (a.delta != nullptr) __builtin_prefetch(a.delta + row + width + c);
          VecF centered = LoadUpTo(x + c, count, mean) - mean;
          squares = Fma(centered, centered, squares);
        });
    const float variance = ReduceAdd(squares) / static_cast<float>(width);
    const float rstd = 1.0f / __builtin_sqrtf(variance + a.epsilon);
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF normed = (LoadUpTo(x + c, count) - mean) * rstd;
          StoreUpTo(a.y + row + c,
                    Fma(normed, LoadUpTo(a.weight + c, count), LoadUpTo(a.bias + c, count)), count);
        });
    a.mean[r] = mean;
    a.rstd[r] = rstd;
  }
}

template <class T>
void Backward(const LayerNormBackwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* dy = a.dy + row;
    const T* x = a.x + row;
    const float mean = a.mean[r], rstd = a.rstd[r];
    // With g = dy * weight: dx = rstd (g - avg(g) - normed avg(g normed)).
    VecF sum_g{}, sum_gx{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF d = LoadUpTo(dy + c, count);
          VecF normed = (LoadUpTo(x + c, count) - mean) * rstd;
          VecF g = d * LoadUpTo(a.weight + c, count);
          sum_g += g;
          sum_gx = Fma(g, normed, sum_gx);
          StoreUpTo(a.dweight + c, Fma(d, normed, LoadUpTo(a.dweight + c, count)), count);
          StoreUpTo(a.dbias + c, d + LoadUpTo(a.dbias + c, count), count);
        });
    const float mean_g = ReduceAdd(sum_g) / static_cast<float>(width);
    const float mean_gx = ReduceAdd(sum_gx) / static_cast<float>(width);
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF normed = (LoadUpTo(x + c, count) - mean) * rstd;
          VecF g = LoadUpTo(dy + c, count) * LoadUpTo(a.weight + c, count);
          VecF dx = (g - mean_g - normed * mean_gx) * rstd;
          if (a.dresidual != nullptr) dx += LoadUpTo(a.dresidual + row + c, count);
          StoreUpTo(a.dx + row + c, dx, count);
        });
  }
}

}  // namespace

const LayerNormKernels kLayerNormKernels = {
    .f32 = {Forward<float>, Backward<float>},
    .bf16 = {Forward<BFloat16>, Backward<BFloat16>},
    .f16 = {Forward<Half>, Backward<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
