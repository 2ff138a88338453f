#include "kernels/linear_fp8/linear_fp8_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

typedef uint8_t VecB __attribute__((vector_size(kLanes)));

// As ToFloat(Float8E4M3) and ToFloat(Float8E5M2): bit patterns from kSpecial on are not numbers.
template <int kFractionBits, int kBias, uint32_t kSpecial>
WEFT_INLINE VecF Values(VecU code) {
  constexpr int kShift = 23 - kFractionBits;
  VecU magnitude = code & 0x7fu;
  VecF tiny =
      __builtin_convertvector(magnitude, VecF) *
      reinterpret_cast<VecF>(VecU{} + (static_cast<uint32_t>(128 - kBias - kFractionBits) << 23));
  VecU positive = (magnitude << kShift) + (static_cast<uint32_t>(127 - kBias) << 23);
  positive = magnitude < (1u << kFractionBits) ? reinterpret_cast<VecU>(tiny) : positive;
  positive = magnitude >= kSpecial ? VecU{} + 0x7fc00000u : positive;
  if (kSpecial < 0x7fu) positive = magnitude == kSpecial ? VecU{} + 0x7f800000u : positive;
  return reinterpret_cast<VecF>(positive | (code & 0x80u) << 24);
}

template <int kFractionBits, int kBias, uint32_t kSpecial>
void Widen(const uint8_t* codes, BFloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t left = count - i;
    VecB bytes = {};
    __builtin_memcpy(&bytes, codes + i, static_cast<size_t>(left < kLanes ? left : kLanes));
    VecF v = Values<kFractionBits, kBias, kSpecial>(__builtin_convertvector(bytes, VecU));
    StoreUpTo(to + i, v, left);
  }
}

void Finish(const float* sum, float scale_a, float scale_b, const BFloat16* bias, BFloat16* c,
            int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t left = count - i;
    VecF v = LoadUpTo(sum + i, left) * scale_a * scale_b;
    if (bias != nullptr) v += LoadUpTo(bias + i, left);
    StoreUpTo(c + i, v, left);
  }
}

void FinishF32(const float* sum, float scale_a, float scale_b, bool accumulate, float* c,
               int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t left = count - i;
    VecF v = LoadUpTo(sum + i, left) * scale_a * scale_b;
    if (accumulate) v += LoadUpTo(c + i, left);
    StoreUpTo(c + i, v, left);
  }
}

}  // namespace

const LinearFp8Kernels kLinearFp8Kernels = {.widen_e4m3 = Widen<3, 7, 0x7f>,
                                            .widen_e5m2 = Widen<2, 15, 0x7c>,
                                            .finish = Finish,
                                            .finish_f32 = FinishF32};

}  // namespace weft::kernels::cpu::WEFT_ISA
