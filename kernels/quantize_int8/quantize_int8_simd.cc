#include "kernels/quantize_int8/quantize_int8_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

typedef int8_t VecC __attribute__((vector_size(kLanes)));

// The nearest integers, half to even.
WEFT_INLINE VecI ToNearestInt(VecF v) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_cvtps_epi32(v));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(_mm256_cvtps_epi32(v));
#elif defined(__SSE2__)
  return reinterpret_cast<VecI>(_mm_cvtps_epi32(v));
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_rintf(v[i]);
  return __builtin_convertvector(v, VecI);
#endif
}

template <class T>
uint32_t Largest(const T* x, int64_t count) {
  VecU largest = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto bits = reinterpret_cast<VecU>(Abs(LoadUpTo(x + i, count - i)));
    largest = bits > largest ? bits : largest;
  }
  uint32_t of_all = largest[0];
  for (int i = 1; i < kLanes; ++i) of_all = largest[i] > of_all ? largest[i] : of_all;
  return of_all;
}

template <class T>
void Quantize(const T* x, float factor, uint8_t* q, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const VecC codes = __builtin_convertvector(ToNearestInt(LoadUpTo(x + i, left) * factor), VecC);
    __builtin_memcpy(q + i, &codes, static_cast<size_t>(left < kLanes ? left : kLanes));
  }
}

template <class T>
void Dequantize(const uint8_t* q, float scale, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    VecC codes = {};
    __builtin_memcpy(&codes, q + i, static_cast<size_t>(left < kLanes ? left : kLanes));
    StoreUpTo(y + i, __builtin_convertvector(codes, VecF) * scale, left);
  }
}

template <class T>
constexpr QuantizeInt8Loops<T> kLoops = {Largest<T>, Quantize<T>, Dequantize<T>};

}  // namespace

const QuantizeInt8Kernels kQuantizeInt8Kernels = {
    .f32 = kLoops<float>, .bf16 = kLoops<BFloat16>, .f16 = kLoops<Half>};

}  // namespace weft::kernels::cpu::WEFT_ISA
