#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace weft::kernels::cpu::avx512_bf16 {

/// Products of bf16 matrices on AMX tiles, faster than oneDNN 2.6 by half and more. A product
/// c = a b runs over blocks of 32 x 32 of c. The right-hand matrix b [k, n] is packed: for each
/// panel of 32 columns, for each 32 rows, two tiles of 16 columns with pairs of rows side by side,
/// as TDPBF16PS reads them. k and n are multiples of 32. All functions work on a range, for the
/// caller to spread over threads, and need Isa::kAmx.
inline constexpr int64_t kBlock = 32;

/// Packs panels [begin, end) of b from f32 or bf16, where b[i, j] stands at from[i * stride + j].
void PackRows(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
              BFloat16* packed);
void PackRows(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
              BFloat16* packed);

/// The same where b[i, j] stands at from[j * stride + i]: b is the transpose of the matrix given.
void PackColumns(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed);
void PackColumns(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed);

/// Packs rows [32 * begin, 32 * end) of all n columns of b from bf16, b[i, j] at
/// from[i * stride + j], k rows in all; rows up to the next multiple of 32 become zero.
void PackBf16Rows(const BFloat16* from, int64_t stride, int64_t k, int64_t n, int64_t begin,
                  int64_t end, BFloat16* packed);

/// Transposes a bf16 matrix [rows, columns], columns a multiple of 32, into rows of `to`, each
/// `to_stride` elements apart (a multiple of 32, at least `rows`), zero up to the next multiple of
/// 32 behind `rows`. Adds the sums of the columns to `sums`, unless it is null.
void TransposeBf16(const BFloat16* from, int64_t stride, int64_t rows, int64_t columns,
                   BFloat16* to, int64_t to_stride, float* sums);

/// Rows of a that the second-level cache keeps while panels of b pass by; a multiple of 32.
int64_t ResidentRows(int64_t k);

struct Product {
  const BFloat16* a;  ///< [m, k] row-major
  int64_t a_stride;
  int64_t k;
  const BFloat16* b;  ///< packed
  const float* bias;  ///< [n], or null
  float* c_f32;       ///< [m, n] row-major; one of the two
  BFloat16* c_bf16;
  int64_t c_stride;
  bool accumulate;  ///< c += instead of c =; not together with a bias
};

/// Computes rows [row_begin, row_end) and panels [begin, end) of c. `row_scratch` holds 32 * k
/// elements.
void Multiply(const Product& product, int64_t row_begin, int64_t row_end, int64_t begin,
              int64_t end, BFloat16* row_scratch);

}  // namespace weft::kernels::cpu::avx512_bf16
