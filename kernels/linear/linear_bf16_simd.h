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

/// `count` in equal parts of at most `most`, each a multiple of 32.
__attribute__((always_inline)) inline int64_t EvenPart(int64_t count, int64_t most) {
  const int64_t parts = (count + most - 1) / most;
  return (count + parts * kBlock - 1) / (parts * kBlock) * kBlock;
}

/// Packs rows [32 * begin, 32 * end) of all n columns of b, b[i, j] at from[i * stride + j], k rows
/// in all; rows up to the next multiple of 32 become zero. Written past the cache.
void PackRows(const BFloat16* from, int64_t stride, int64_t k, int64_t n, int64_t begin,
              int64_t end, BFloat16* packed);

/// Packs panels [begin, end) of b from f32 or bf16, b[i, j] at from[j * stride + i]: b is the
/// transpose of the matrix given. k is a multiple of 32. Written past the cache.
void PackColumns(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed);
void PackColumns(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed);

/// Packs panels [begin, end) of the transpose of b [k, n], which is packed itself. k and n are
/// multiples of 32. The product should follow at once.
void PackTransposed(const BFloat16* b, int64_t k, int64_t n, int64_t begin, int64_t end,
                    BFloat16* packed);

/// What a product becomes while it is stored, in bf16 and not added to what is there.
enum class ProductGelu : uint8_t {
  kNone,
  kTanh,          ///< c, and active = GELU(c)
  kErf,           ///< likewise, in its exact form
  kTanhGradient,  ///< c = product * GELU'(before), active = GELU(before); without a bias
  kErfGradient,
};

struct Product {
  const BFloat16* a;  ///< [m, k] row-major
  int64_t a_stride;
  bool a_columns;   ///< a is stored as [k, m]; only k_valid rows are there, the others are zero
  int64_t k_valid;  ///< with a_columns
  float* a_sums;    ///< with a_columns: null, or [m], to which sums over k are added
  int64_t k;
  const BFloat16* b;  ///< packed
  const float* bias;  ///< [n], or null
  float* c_f32;       ///< [m, n] row-major; one of the two
  BFloat16* c_bf16;
  int64_t c_stride;
  bool accumulate;  ///< c += instead of c =; not together with a bias
  ProductGelu gelu;
  const BFloat16* before;  ///< [m, n] with the stride of c
  BFloat16* active;        ///< likewise; of the gradients possibly null
};

/// Memory that Multiply() works in, on cache lines of its own.
struct Scratch {
  BFloat16* a;
  float* sums;
};

/// Elements of it that a range of this many rows and panels needs.
struct ScratchSize {
  int64_t a;
  int64_t sums;
};
ScratchSize ScratchOf(int64_t k, int64_t rows, int64_t panels);

/// Computes rows [row_begin, row_end) and panels [begin, end) of c; with a_sums, adds to those of
/// its rows.
void Multiply(const Product& product, int64_t row_begin, int64_t row_end, int64_t begin,
              int64_t end, Scratch scratch);

}  // namespace weft::kernels::cpu::avx512_bf16
