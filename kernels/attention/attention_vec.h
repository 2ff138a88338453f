#pragma once

#include "kernels/cpu/vec.h"

/// Vector functions of the attention kernels.
namespace weft::kernels::cpu::WEFT_ISA {

/// 2^x for x <= 126 or so; 0 where x is below -126, and NaN for NaN. Relative error below 3e-6
/// (kDegree 4) or 2e-7 (kDegree 5): minimax polynomials for 2^f, f in [0, 1].
template <int kDegree>
WEFT_INLINE VecF Exp2(VecF x) {
#if defined(__AVX512F__)
  // Lanes that would underflow are left out: computing denormal numbers takes hundreds of cycles.
  __mmask16 normal = _mm512_cmp_ps_mask(x, Set(-126.0f), _CMP_NLT_UQ);
  constexpr int kFractionAboveFloor = 1;
  VecF f = _mm512_reduce_ps(x, kFractionAboveFloor);
#else
  VecF clamped = x < -126.0f ? Set(-126.0f) : x;
  VecF shifted = (clamped - 0.5f) + 12582912.0f;
  VecF f = clamped - (shifted - 12582912.0f);
#endif
  VecF p;
  if constexpr (kDegree == 4) {
    p = Fma(Set(0.01353416791f), f, Set(0.05201146062f));
    p = Fma(p, f, Set(0.2414427569f));
    p = Fma(p, f, Set(0.6930038345f));
    p = Fma(p, f, Set(1.000002593f));
  } else {
    p = Fma(Set(0.001877576675f), f, Set(0.008989340091f));
    p = Fma(p, f, Set(0.05582631805f));
    p = Fma(p, f, Set(0.240153617f));
    p = Fma(p, f, Set(0.6931530732f));
    p = Fma(p, f, Set(0.9999999251f));
  }
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(normal, p, x);
#else
  VecI exponent = reinterpret_cast<VecI>(shifted) - 0x4b400000;
  VecF result = p * reinterpret_cast<VecF>((exponent + 127) << 23);
  return x < -126.0f ? Set(0.0f) : result;
#endif
}

/// Natural logarithm of positive normal numbers, with relative error below 3e-7 away from 1.
WEFT_INLINE VecF Log(VecF x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh(t), t = (m - 1) / (m + 1) < 0.172.
  VecI bits = reinterpret_cast<VecI>(x) - 0x3f3504f3;
  VecF n = __builtin_convertvector(bits >> 23, VecF);
  VecF m = reinterpret_cast<VecF>((bits & 0x007fffff) + 0x3f3504f3);
  VecF t = (m - 1.0f) / (m + 1.0f);
  VecF square = t * t;
  VecF p = Set(2.0f / 9);
  p = Fma(p, square, Set(2.0f / 7));
  p = Fma(p, square, Set(2.0f / 5));
  p = Fma(p, square, Set(2.0f / 3));
  p = Fma(p, square, Set(2.0f));
  return Fma(n, Set(0.693147181f), p * t);
}

WEFT_INLINE bool AnyLane(VecI condition) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(condition),
                                reinterpret_cast<__m512i>(condition)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(condition)) != 0;
#else
  return (condition[0] | condition[1] | condition[2] | condition[3]) != 0;
#endif
}

/// Transposes kLanes x kLanes words in registers.
WEFT_INLINE void Transpose(VecF (&rows)[kLanes]) {
  // Each round is a perfect shuffle of the rows; after log2(kLanes) the matrix is transposed.
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    VecF shuffled[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      shuffled[2 * i] = InterleaveLow(rows[i], rows[i + kLanes / 2]);
      shuffled[2 * i + 1] = InterleaveHigh(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
}

/// to[c][r] = from[r][c] for 32-bit words (bit patterns of any type, carried as floats); rows and
/// columns are multiples of 16.
WEFT_INLINE void TransposeWords(const float* from, int64_t from_stride, int64_t rows,
                                int64_t columns, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      VecF block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = Load(from + (r + i) * from_stride + c);
      Transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(to + (c + i) * to_stride + r, block[i]);
    }
  }
}

}  // namespace weft::kernels::cpu::WEFT_ISA
