#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y[i] = x[rows[i]].
struct GatherRowsArgs {
  TensorView x;     ///< [n, width] f32, bf16 or f16
  TensorView rows;  ///< [k] i32, each in [0, n)
  TensorView y;     ///< [k, width], the type of x
};

/// y[rows[i]] = x[i], rows distinct; the other rows of y stay as they are.
struct ScatterRowsArgs {
  TensorView x;     ///< [k, width] f32, bf16 or f16
  TensorView rows;  ///< [k] i32, each in [0, n)
  TensorView y;     ///< [n, width], the type of x
};

/// An index out of range is kInvalid and named on the CPU. On CUDA, where that would mean to wait
/// for the device, its row is NaN when gathered and goes nowhere when scattered.
WEFT_DEVICE_OP(GatherRows, GatherRowsArgs)
WEFT_DEVICE_OP(ScatterRows, ScatterRowsArgs)

}  // namespace weft::kernels
