#include "kernels/quantize_fp8/quantize_fp8_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

typedef uint8_t VecB __attribute__((vector_size(kLanes)));

WEFT_INLINE VecU Magnitude(VecF v) {
  return reinterpret_cast<VecU>(v) & 0x7fffffffu;
}

WEFT_INLINE VecU Larger(VecU a, VecU b) {
  return a > b ? a : b;
}

// As ToFloat8<T>(float).
template <int kFractionBits, int kBias, uint32_t kLargest>
WEFT_INLINE VecU Codes(VecF v) {
  constexpr int kShift = 23 - kFractionBits;
  constexpr uint32_t kUnit = static_cast<uint32_t>(128 - kBias + kShift) << 23;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  constexpr uint32_t kHalf = (1u << (kShift - 1)) - 1;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  VecU magnitude = Magnitude(v);
  VecU finite = magnitude < kLargest ? magnitude : VecU{} + kLargest;
  VecU tiny = reinterpret_cast<VecU>(reinterpret_cast<VecF>(finite) +
                                     reinterpret_cast<VecF>(VecU{} + kUnit)) -
              kUnit;
  VecU normal = (finite + kHalf + (finite >> kShift & 1u) - kRebias) >> kShift;
  VecU code = finite < kSmallestNormal ? tiny : normal;
  code |= reinterpret_cast<VecU>(v) >> 24 & 0x80u;
  return magnitude > 0x7f800000u ? VecU{} + 0x7fu : code;
}

WEFT_INLINE uint32_t LargestLane(VecU v) {
  uint32_t largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

template <class T, int kFractionBits, int kBias, uint32_t kLargest>
uint32_t Quantize(const T* x, float scale, uint8_t* q, int64_t count) {
  VecU amax = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t left = count - i;
    VecF v = LoadUpTo(x + i, left);
    amax = Larger(amax, Magnitude(v));
    VecB codes = __builtin_convertvector(Codes<kFractionBits, kBias, kLargest>(v * scale), VecB);
    __builtin_memcpy(q + i, &codes, static_cast<size_t>(left < kLanes ? left : kLanes));
  }
  return LargestLane(amax);
}

template <class T>
uint32_t Amax(const T* x, int64_t count) {
  VecU amax = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    amax = Larger(amax, Magnitude(LoadUpTo(x + i, count - i)));
  }
  return LargestLane(amax);
}

// The largest numbers, 448 and 57344, as f32 bits.
template <class T>
constexpr QuantizeFp8Loops<T> kLoops = {.e4m3 = Quantize<T, 3, 7, 0x43e00000u>,
                                        .e5m2 = Quantize<T, 2, 15, 0x47600000u>,
                                        .amax = Amax<T>};

}  // namespace

const QuantizeFp8Kernels kQuantizeFp8Kernels = {.f32 = kLoops<float>, .bf16 = kLoops<BFloat16>};

}  // namespace weft::kernels::cpu::WEFT_ISA
