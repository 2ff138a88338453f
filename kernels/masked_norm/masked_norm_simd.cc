#include "kernels/masked_norm/masked_norm_simd.h"

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
void Forward(const MaskedNormForwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  const bool centered = a.bias != nullptr;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* x = a.delta != nullptr ? a.residual_out + row : a.residual + row;
    VecF sum{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          if (a.delta != nullptr) {
            // The norm sees what is stored, so that the backward pass, which reads it, agrees.
            VecF added = LoadUpTo(a.residual + row + c, count) + LoadUpTo(a.delta + row + c, count);
            StoreUpTo(a.residual_out + row + c, added, count);
          }
          sum = Fma(LoadUpTo(x + c, count), LoadUpTo(a.mask + c, count), sum);
        });
    const float mean = centered ? ReduceAdd(sum) / a.columns : 0.0f;
    VecF squares{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF apart = LoadUpTo(x + c, count) - mean;
          squares = Fma(apart * LoadUpTo(a.mask + c, count), apart, squares);
        });
    const float scale = 1.0f / __builtin_sqrtf(ReduceAdd(squares) / a.columns + a.epsilon);
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF normed = (LoadUpTo(x + c, count) - mean) * scale;
          VecF y = normed * LoadUpTo(a.weight + c, count);
          if (centered) y += LoadUpTo(a.bias + c, count);
          StoreUpTo(a.y + row + c, y * LoadUpTo(a.mask + c, count), count);
        });
    if (centered) a.mean[r] = mean;
    a.scale[r] = scale;
  }
}

template <class T>
void Backward(const MaskedNormBackwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r * width;
    const T* dy = a.dy + row;
    const T* x = a.x + row;
    const float mean = a.mean != nullptr ? a.mean[r] : 0.0f, scale = a.scale[r];
    // With d = c dy, g = d weight and normed = (x - mean) scale:
    // dx = scale (g - c (sum of g + normed sum of g normed) / C); RMS: without the first sum.
    VecF sum_g{}, sum_gx{};
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF d = LoadUpTo(dy + c, count) * LoadUpTo(a.mask + c, count);
          VecF normed = (LoadUpTo(x + c, count) - mean) * scale;
          VecF g = d * LoadUpTo(a.weight + c, count);
          sum_g += g;
          sum_gx = Fma(g, normed, sum_gx);
          StoreUpTo(a.dweight + c, Fma(d, normed, LoadUpTo(a.dweight + c, count)), count);
          StoreUpTo(a.dbias + c, d + LoadUpTo(a.dbias + c, count), count);
        });
    const float mean_g = a.mean != nullptr ? ReduceAdd(sum_g) / a.columns : 0.0f;
    const float mean_gx = ReduceAdd(sum_gx) / a.columns;
    ForColumns(
        width, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          VecF mask = LoadUpTo(a.mask + c, count);
          VecF normed = (LoadUpTo(x + c, count) - mean) * scale;
          VecF g = LoadUpTo(dy + c, count) * LoadUpTo(a.weight + c, count);
          VecF dx = (g - normed * mean_gx - mean_g) * mask * scale;
          if (a.dresidual != nullptr) dx += LoadUpTo(a.dresidual + row + c, count);
          StoreUpTo(a.dx + row + c, dx, count);
        });
  }
}

}  // namespace

const MaskedNormKernels kMaskedNormKernels = {
    .f32 = {Forward<float>, Backward<float>},
    .bf16 = {Forward<BFloat16>, Backward<BFloat16>},
    .f16 = {Forward<Half>, Backward<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
