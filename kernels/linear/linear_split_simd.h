#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/linear/linear_bf16_simd.h"
#include "kernels/linear/stored_operand.h"

namespace weft::kernels::cpu::avx512_bf16 {

/// Products of f32 matrices on AMX tiles, which multiply bf16 and add in f32. Each number is the
/// sum of three bf16 ones, x = x1 + x2 + x3: the rounding of x, that of what remains, and the rest.
/// x y is then x1 y1 + x1 y2 + x2 y1 + x1 y3 + x2 y2 + x3 y1; what is left out is 2^-24 of it and
/// less, so the result is as close as that of f32 products and sums (Henry, Tang, Heinecke 2019,
/// arXiv:1904.06376). Numbers, parts and products below 2^-126 count as zero; a sum that overflows
/// f32 is infinite or NaN. All functions need Isa::kAmx.
inline constexpr int64_t kParts = 3;

/// Splits rows (of a left operand) or columns (of a right one) [32 * begin, 32 * end) of it over
/// [k_begin, k_begin + depth) into `parts`: for each 32 of them, for each 32 of k, the three parts,
/// each as two tiles. k_begin and depth are multiples of 32. With `first` null, returns whether
/// there may be numbers whose first part is not finite: then it has to run again with `first`,
/// which gets first parts alone. These have NaN and infinity, which have no other part, and are
/// zero in `parts`; so infinity times a number is infinity, though that number has parts of zero.
bool Split(const StoredOperand& source, bool left, int64_t begin, int64_t end, int64_t k_begin,
           int64_t depth, BFloat16* parts, BFloat16* first);

/// An operand that was split.
struct SplitOperand {
  const BFloat16* parts;
  const BFloat16* first;  ///< null: as in `parts`
};

struct SplitProduct {
  SplitOperand a;  ///< as many rows as a multiple of 32
  SplitOperand b;  ///< panels of 32 columns
  int64_t depth;
  int64_t rows;  ///< of c
  int64_t panels;
  const float* bias;  ///< [n], or null
  float* c_f32;       ///< [m, n] row-major; one of the two
  Half* c_f16;
  int64_t c_stride;
  bool accumulate;  ///< c += instead of c =; not together with a bias
  bool stream;      ///< c is not read soon, and may be written past the cache
};

void MultiplySplit(const SplitProduct& product);

}  // namespace weft::kernels::cpu::avx512_bf16
