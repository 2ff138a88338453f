#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/dtype.h"

#ifndef WEFT_ISA
#error "vec.h is for <op>_simd.cc files only: they are compiled once per instruction set"
#endif

#define WEFT_INLINE inline __attribute__((always_inline))

/// Vectors of f32 as wide as the instruction set this file is compiled for, with loads and stores
/// of f32, bf16 and half. Operators (+ - * / and comparisons) come with the compiler's vector
/// extension; here is what they lack. Everything is forced inline and lives in the namespace
/// WEFT_ISA, and nothing of the std library is used: a function that two compilations share could
/// carry instructions that the machine lacks.
namespace weft::kernels::cpu::WEFT_ISA {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

/// f32 lanes of a vector.
inline constexpr int kLanes = kVecBytes / 4;

typedef float VecF __attribute__((vector_size(kVecBytes)));
typedef int32_t VecI __attribute__((vector_size(kVecBytes)));
typedef uint32_t VecU __attribute__((vector_size(kVecBytes)));
typedef uint16_t VecH __attribute__((vector_size(kVecBytes / 2)));

WEFT_INLINE VecF Set(float value) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(value);
#elif defined(__AVX2__)
  return _mm256_set1_ps(value);
#else
  return VecF{value, value, value, value};
#endif
}

WEFT_INLINE VecF Load(const float* from) {
  VecF v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

WEFT_INLINE void Store(float* to, VecF v) {
  __builtin_memcpy(static_cast<void*>(to), &v, sizeof v);
}

/// Widens bf16 bit patterns.
WEFT_INLINE VecF FromBits(VecH bits) {
#if defined(__AVX512F__)
  auto wide = reinterpret_cast<VecU>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  auto wide = reinterpret_cast<VecU>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(bits)));
#else
  VecU wide = __builtin_convertvector(bits, VecU);
#endif
  return reinterpret_cast<VecF>(wide << 16);
}

/// Rounds to bf16, to nearest even; NaN stays a NaN. The same bits on every instruction set.
WEFT_INLINE VecH ToBits(VecF v) {
  auto bits = reinterpret_cast<VecU>(v);
  VecU rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  VecU quiet_nan = bits | 0x400000u;
  VecU chosen = v != v ? quiet_nan : rounded;
#if defined(__AVX512F__)
  return reinterpret_cast<VecH>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(chosen >> 16)));
#elif defined(__AVX2__)
  auto halves = reinterpret_cast<__m256i>(chosen >> 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
  return reinterpret_cast<VecH>(_mm256_castsi256_si128(packed));
#else
  return __builtin_convertvector(chosen >> 16, VecH);
#endif
}

WEFT_INLINE VecF Load(const BFloat16* from) {
  VecH bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return FromBits(bits);
}

WEFT_INLINE void Store(BFloat16* to, VecF v) {
  VecH bits = ToBits(v);
  __builtin_memcpy(static_cast<void*>(to), &bits, sizeof bits);
}

/// Widens halves, subnormal ones too; a NaN becomes quiet.
WEFT_INLINE VecF FromHalf(VecH bits) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(bits));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits));
#else
  // As ToFloat(Half).
  VecU wide = __builtin_convertvector(bits, VecU);
  VecU magnitude = wide & 0x7fffu;
  VecF tiny = __builtin_convertvector(magnitude, VecF) * 0x1.0p-24f;
  VecU quiet = magnitude > 0x7c00u ? VecU{} + 0x400000u : VecU{};
  VecU shift = magnitude >= 0x7c00u ? VecU{} + (224u << 23) : VecU{} + (112u << 23);
  VecU positive =
      magnitude < 0x400u ? reinterpret_cast<VecU>(tiny) : quiet | ((magnitude << 13) + shift);
  return reinterpret_cast<VecF>(positive | (wide & 0x8000u) << 16);
#endif
}

/// Rounds to half, to nearest even; too large is infinity, NaN stays a NaN. The same bits on every
/// instruction set.
WEFT_INLINE VecH ToHalfBits(VecF v) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecH>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return reinterpret_cast<VecH>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  // As ToHalf(float).
  auto bits = reinterpret_cast<VecU>(v);
  VecU magnitude = bits & 0x7fffffffu;
  VecU nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  VecU tiny = reinterpret_cast<VecU>(reinterpret_cast<VecF>(magnitude) + 0.5f) - 0x3f000000u;
  VecU normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  VecU half = magnitude < 0x38800000u ? tiny : normal;
  half = magnitude >= 0x477ff000u ? VecU{} + 0x7c00u : half;
  half = magnitude > 0x7f800000u ? nan : half;
  return __builtin_convertvector(half | (bits >> 16 & 0x8000u), VecH);
#endif
}

WEFT_INLINE VecF Load(const Half* from) {
  VecH bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return FromHalf(bits);
}

WEFT_INLINE void Store(Half* to, VecF v) {
  VecH bits = ToHalfBits(v);
  __builtin_memcpy(static_cast<void*>(to), &bits, sizeof bits);
}

/// The first `count` (< kLanes) elements, `fill` in the other lanes.
template <class T>
WEFT_INLINE VecF LoadPart(const T* from, int64_t count, float fill = 0.0f) {
  T part[kLanes] = {};
  __builtin_memcpy(static_cast<void*>(part), from, static_cast<size_t>(count) * sizeof(T));
  VecF v = Load(part);
  VecI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < static_cast<int32_t>(count) ? v : Set(fill);
}

/// Writes the first `count` (< kLanes) lanes.
template <class T>
WEFT_INLINE void StorePart(T* to, VecF v, int64_t count) {
  T part[kLanes];
  Store(part, v);
  __builtin_memcpy(static_cast<void*>(to), part, static_cast<size_t>(count) * sizeof(T));
}

/// Load and Store of a whole vector, or of `count` elements when fewer are left.
template <class T>
WEFT_INLINE VecF LoadUpTo(const T* from, int64_t count, float fill = 0.0f) {
  return count >= kLanes ? Load(from) : LoadPart(from, count, fill);
}
template <class T>
WEFT_INLINE void StoreUpTo(T* to, VecF v, int64_t count) {
  if (count >= kLanes) {
    Store(to, v);
  } else {
    StorePart(to, v, count);
  }
}

/// a * b + c, in one rounding where the machine has it.
WEFT_INLINE VecF Fma(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// The larger; b when either is a NaN.
WEFT_INLINE VecF Max(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

/// The smaller; b when either is a NaN.
WEFT_INLINE VecF Min(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

WEFT_INLINE VecF Abs(VecF v) {
  return reinterpret_cast<VecF>(reinterpret_cast<VecU>(v) & 0x7fffffffu);
}

WEFT_INLINE VecF Sqrt(VecF v) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(v);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

/// 1 / v with relative error below 2e-7, for finite v of normal size and reciprocal. NaN stays.
WEFT_INLINE VecF Reciprocal(VecF v) {
#if defined(__AVX512F__)
  // 14 bits from the table, twice as many after Newton's step: a quarter of a division's time.
  VecF r = _mm512_rcp14_ps(v);
  return Fma(r, Fma(-v, r, Set(1.0f)), r);
#else
  return 1.0f / v;
#endif
}

/// a[0] b[0] a[1] b[1] ... of the lower halves.
WEFT_INLINE VecF InterleaveLow(VecF a, VecF b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

/// The same of the upper halves.
WEFT_INLINE VecF InterleaveHigh(VecF a, VecF b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/// Sum of the lanes, pairwise.
WEFT_INLINE float ReduceAdd(VecF v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// Largest lane, of lanes without NaN.
WEFT_INLINE float ReduceMax(VecF v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

/// e^x with relative error below 2e-7. Under -87.3 the result is 0, over 88.7 infinity; NaN stays.
WEFT_INLINE VecF Exp(VecF x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer in the low bits.
  VecF clamped = Min(Set(88.8f), Max(Set(-88.0f), x));
  VecF shifted = Fma(clamped, Set(1.44269504089f), Set(12582912.0f));
  VecF n = shifted - 12582912.0f;
  VecF r = Fma(n, Set(-0.693145752f), clamped);
  r = Fma(n, Set(-1.42860677e-6f), r);
  // Taylor series to r^7 / 7!: the next term is below 6e-9 of the sum.
  VecF p = Set(1.0f / 5040);
  p = Fma(p, r, Set(1.0f / 720));
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
#if defined(__AVX512F__)
  VecF result = _mm512_scalef_ps(p, n);
#else
  // 2^n in two factors, since n reaches 128; the low bits of `shifted` hold n.
  VecI exponent = reinterpret_cast<VecI>(shifted) - 0x4b400000;
  VecI half = exponent >> 1;
  VecF low = reinterpret_cast<VecF>((half + 127) << 23);
  VecF high = reinterpret_cast<VecF>((exponent - half + 127) << 23);
  VecF result = p * low * high;
#endif
  return x < -87.3f ? Set(0.0f) : result;
}

/// e^x with relative error below 2e-7 where |x| <= 87.33 (a normal number); elsewhere, and of a
/// NaN, anything. Its chain of dependent operations is half as long as that of Exp, which is what
/// loops over arrays wait for.
WEFT_INLINE VecF ExpWithin87(VecF x) {
  VecF shifted = Fma(x, Set(1.44269504089f), Set(12582912.0f));
  VecF n = shifted - 12582912.0f;
  VecF r = Fma(n, Set(-0.693145752f), x);
  r = Fma(n, Set(-1.42860677e-6f), r);
  // The series of Exp in pairs of terms.
  VecF square = r * r;
  VecF low = Fma(Fma(r, Set(1.0f / 6), Set(0.5f)), square, 1.0f + r);
  VecF high = Fma(Fma(r, Set(1.0f / 5040), Set(1.0f / 720)), square,
                  Fma(r, Set(1.0f / 120), Set(1.0f / 24)));
  VecF p = Fma(high, square * square, low);
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  // The low bits of `shifted` hold n, which the exponent of p takes on.
  return reinterpret_cast<VecF>(reinterpret_cast<VecU>(p) +
                                (reinterpret_cast<VecU>(shifted) << 23));
#endif
}

}  // namespace weft::kernels::cpu::WEFT_ISA
