#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y[i] = x[rows[i]]; with a period the same of each `period` rows of x, one group after the other:
/// y[g k + i] = x[g period + rows[i]].
struct GatherRowsArgs {
  TensorView x;        ///< [n, width] f32, bf16 or f16
  TensorView rows;     ///< [k] i32, each in [0, period)
  TensorView y;        ///< [n / period * k, width], the type of x
  int64_t period = 0;  ///< Divides n; 0: n.
};

/// y[rows[i]] = x[i], rows distinct, or y[g period + rows[i]] = x[g k + i]; the other rows of y
/// stay as they are.
struct ScatterRowsArgs {
  TensorView x;        ///< [n / period * k, width] f32, bf16 or f16
  TensorView rows;     ///< [k] i32, each in [0, period)
  TensorView y;        ///< [n, width], the type of x
  int64_t period = 0;  ///< Divides n; 0: n.
};

/// An index out of range is kInvalid and named on the CPU. On CUDA, where that would mean to wait
/// for the device, its row is NaN when gathered and goes nowhere when scattered.
WEFT_DEVICE_OP(GatherRows, GatherRowsArgs)
WEFT_DEVICE_OP(ScatterRows, ScatterRowsArgs)

}  // namespace weft::kernels
