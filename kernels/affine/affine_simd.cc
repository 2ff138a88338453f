#include "kernels/affine/affine_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class T>
void Forward(const AffineForwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < width; c += kLanes) {
      const int64_t left = width - c;
      VecF value = LoadUpTo(a.x + r * width + c, left);
      if (a.scale != nullptr) value = value * LoadUpTo(a.scale + c, left);
      if (a.shift != nullptr) value = value + LoadUpTo(a.shift + c, left);
      StoreUpTo(a.y + r * width + c, value, left);
    }
  }
}

template <class T>
void Backward(const AffineBackwardRows<T>& a, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < width; c += kLanes) {
      const int64_t left = width - c;
      const int64_t at = r * width + c;
      const VecF dy = LoadUpTo(a.dy + at, left);
      if (a.dscale != nullptr) {
        const VecF sum = Fma(dy, LoadUpTo(a.x + at, left), LoadUpTo(a.dscale + c, left));
        StoreUpTo(a.dscale + c, sum, left);
      }
      if (a.dshift != nullptr) {
        StoreUpTo(a.dshift + c, LoadUpTo(a.dshift + c, left) + dy, left);
      }
      if (a.dx == nullptr) continue;
      StoreUpTo(a.dx + at, a.scale == nullptr ? dy : dy * LoadUpTo(a.scale + c, left), left);
    }
  }
}

}  // namespace

const AffineKernels kAffineKernels = {
    .f32 = {Forward<float>, Backward<float>},
    .bf16 = {Forward<BFloat16>, Backward<BFloat16>},
    .f16 = {Forward<Half>, Backward<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
