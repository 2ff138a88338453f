#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// An operand of a product where it is stored: f32, or f16 or bf16 as it is widened.
struct StoredOperand {
  const void* data;
  DType dtype;
  int64_t stride;    ///< Elements between rows.
  int64_t rows;      ///< How many are there; those behind them count as zero.
  bool sum_in_rows;  ///< Products sum along the rows, [.., k], not over the rows, [k, ..].
};

}  // namespace weft::kernels::cpu
