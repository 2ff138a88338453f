#pragma once

#include "kernels/attention/attention_math.h"

namespace weft::kernels::cpu::WEFT_ISA {

/// bf16 operands by vdpbf16ps.
struct Bf16DotMath {
  using Element = BFloat16;
  static constexpr int kPair = 2;
  static constexpr int kMultiple = 32;
  static constexpr int kExpDegree = 4;

  static void Begin() {}
  static void End() {}

  static WEFT_INLINE VecF MultiplyAdd(VecF a, VecF b, VecF sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  static void Multiply(const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
                       int64_t ldc, int64_t m, int64_t n, int64_t k, bool accumulate) {
    MultiplyByVectors<Bf16DotMath>(a, lda, b, ldb, c, ldc, m, n, k, accumulate);
  }

  static WEFT_INLINE void StoreRow(BFloat16* to, VecF v) {
    __m256bh bits = _mm512_cvtneps_pbh(v);
    __builtin_memcpy(static_cast<void*>(to), &bits, sizeof bits);
  }

  static WEFT_INLINE void StorePair(BFloat16* panel, int64_t ldb, int64_t row, VecF first,
                                    VecF second) {
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    __m512i pairs = _mm512_permutexvar_epi16(interleave, both);
    __builtin_memcpy(static_cast<void*>(panel + row / 2 * ldb), &pairs, sizeof pairs);
  }
};

/// bf16 operands by AMX tiles of 16 x 32 elements.
struct Bf16TileMath : Bf16DotMath {
  /// Tiles 0-3 hold results, 4 and 5 rows of a, 6 and 7 columns of b; all of 16 rows of 64 bytes.
  static void Begin() {
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
  }
  static void End() { _tile_release(); }

  static void Multiply(const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
                       int64_t ldc, int64_t m, int64_t n, int64_t k, bool accumulate) {
    // The tile intrinsics do not tell the compiler that they read memory.
    asm volatile("" ::: "memory");
    for (int64_t j = 0; j < n; j += 32) {
      for (int64_t i = 0; i < m; i += 32) {
        float* c00 = c + i * ldc + j;
        float* c10 = c00 + 16 * ldc;
        int64_t c_bytes = ldc * 4, a_bytes = lda * 2, b_bytes = ldb * 2;
        if (accumulate) {
          _tile_loadd(0, c00, c_bytes);
          _tile_loadd(1, c00 + 16, c_bytes);
          _tile_loadd(2, c10, c_bytes);
          _tile_loadd(3, c10 + 16, c_bytes);
        } else {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        }
        for (int64_t depth = 0; depth < k; depth += 32) {
          const BFloat16* left = a + i * lda + depth;
          const BFloat16* right = b + depth / 2 * ldb + j * 2;
          _tile_loadd(4, left, a_bytes);
          _tile_loadd(6, right, b_bytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, right + 32, b_bytes);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, left + 16 * lda, a_bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c00, c_bytes);
        _tile_stored(1, c00 + 16, c_bytes);
        _tile_stored(2, c10, c_bytes);
        _tile_stored(3, c10 + 16, c_bytes);
      }
    }
    asm volatile("" ::: "memory");
  }
};

}  // namespace weft::kernels::cpu::WEFT_ISA
