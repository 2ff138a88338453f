#pragma once

#include "common/rng.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// How the two of a group are drawn; p is the probability that an element is kept.
enum class MvueDraw : uint8_t {
  /// One after the other, each with a probability in proportion to its magnitude among those that
  /// are left (Chmiel et al. 2022, arXiv 2203.10991).
  kSequential,
  /// p = min(1, c |x|), with c such that they add up to 2, by systematic sampling: the least
  /// variance that an unbiased 2:4 estimate can have.
  kMinimumVariance,
};

/// y = S(x), an unbiased estimate of x that is 2:4 sparse along columns: of rows 4 g to 4 g + 3 of
/// each column two are kept, as x / p, and the others are 0. The product of yᵀ with another matrix
/// of as many rows is then an unbiased estimate of that of xᵀ. Rows behind the last whole group are
/// copied. A group with one element that is not 0 keeps it as it is; one of zeros stays.
///
/// x may be a part of a larger matrix, and any split draws the same: group G of column C, counted
/// among all, takes words of the Philox stream. kSequential: the first two of block
/// G * all_columns + C. kMinimumVariance: word C % 4 of block G * ceil(all_columns / 4) + C / 4.
struct MvueArgs {
  TensorView x;  ///< [rows, columns] f32, bf16 or f16; rows may be strided
  TensorView y;  ///< same shape and type; may be x
  MvueDraw draw = MvueDraw::kMinimumVariance;
  PhiloxKey key;
  const uint32_t* step = nullptr;  ///< Where key.step lies (kernels/step_value.h), or none.
  int64_t first_row = 0;           ///< Number of row 0 among all rows; a multiple of 4.
  int64_t first_column = 0;        ///< Number of column 0 among all columns ...
  int64_t all_columns = 0;         ///< ... of this many in all; 0: those of x.
};

/// kInvalid when arguments do not fit. A group with an infinity or a NaN becomes NaN. The same
/// bits, except those of a NaN, on every instruction set and device.
WEFT_DEVICE_OP(Mvue, MvueArgs)

}  // namespace weft::kernels
