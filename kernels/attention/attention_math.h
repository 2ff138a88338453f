#pragma once

#include "kernels/attention/attention_vec.h"

/// How the attention kernels multiply. A Math has
///   Element       type of the operands; products are summed in f32
///   kPair         shared-dimension neighbours that are adjacent in a right-hand panel
///   kMultiple     all sizes are multiples of this
///   kExpDegree    Exp2 precision that suits Element
///   Begin, End    around a sequence of products on one thread
///   Multiply      c[m][n] (+)= sum over k of a[m][k] b[k][n], where a has rows `lda` apart and b
///   is
///                 a panel b[k / kPair][n][kPair], its first index `ldb` elements apart
///   StoreRow      results as T
///   StorePair     two neighbouring rows (the first even) into a right-hand panel
namespace weft::kernels::cpu::WEFT_ISA {

/// One register block of a product: kRows x (kColumns vectors).
template <class Math, int kRows, int kColumns>
WEFT_INLINE void MultiplyBlock(const typename Math::Element* a, int64_t lda,
                               const typename Math::Element* b, int64_t ldb, float* c, int64_t ldc,
                               int64_t k, bool accumulate) {
  VecF sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kColumns; ++j) {
      sum[i][j] = accumulate ? Load(c + i * ldc + j * kLanes) : VecF{};
    }
  }
  for (int64_t depth = 0; depth < k; depth += Math::kPair) {
    VecF right[kColumns];
#pragma GCC unroll 2
    for (int j = 0; j < kColumns; ++j) {
      __builtin_memcpy(&right[j], b + depth / Math::kPair * ldb + j * kLanes * Math::kPair,
                       sizeof(VecF));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      float left;
      __builtin_memcpy(&left, a + i * lda + depth, sizeof left);
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j) {
        sum[i][j] = Math::MultiplyAdd(Set(left), right[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kColumns; ++j) Store(c + i * ldc + j * kLanes, sum[i][j]);
  }
}

/// A product by register blocks, for a Math with MultiplyAdd on vectors of kPair-element words.
template <class Math>
void MultiplyByVectors(const typename Math::Element* a, int64_t lda,
                       const typename Math::Element* b, int64_t ldb, float* c, int64_t ldc,
                       int64_t m, int64_t n, int64_t k, bool accumulate) {
  constexpr int kRows = kLanes == 16 ? 8 : 4;
  for (int64_t j = 0; j < n;) {
    bool wide = j + 2 * kLanes <= n;
    for (int64_t i = 0; i < m; i += kRows) {
      if (wide) {
        MultiplyBlock<Math, kRows, 2>(a + i * lda, lda, b + j * Math::kPair, ldb, c + i * ldc + j,
                                      ldc, k, accumulate);
      } else {
        MultiplyBlock<Math, kRows, 1>(a + i * lda, lda, b + j * Math::kPair, ldb, c + i * ldc + j,
                                      ldc, k, accumulate);
      }
    }
    j += wide ? 2 * kLanes : kLanes;
  }
}

/// Everything in f32, whatever type the tensors have.
struct F32Math {
  using Element = float;
  static constexpr int kPair = 1;
  static constexpr int kMultiple = 16;
  static constexpr int kExpDegree = 5;

  static void Begin() {}
  static void End() {}

  static WEFT_INLINE VecF MultiplyAdd(VecF a, VecF b, VecF sum) { return Fma(a, b, sum); }

  static void Multiply(const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                       int64_t ldc, int64_t m, int64_t n, int64_t k, bool accumulate) {
    MultiplyByVectors<F32Math>(a, lda, b, ldb, c, ldc, m, n, k, accumulate);
  }

  template <class T>
  static WEFT_INLINE void StoreRow(T* to, VecF v) {
    Store(to, v);
  }

  static WEFT_INLINE void StorePair(float* panel, int64_t ldb, int64_t row, VecF first,
                                    VecF second) {
    Store(panel + row * ldb, first);
    Store(panel + (row + 1) * ldb, second);
  }
};

}  // namespace weft::kernels::cpu::WEFT_ISA
