#pragma once

#include <cstdint>

#include "worker/engine/autograd/tape.h"

namespace weft::engine {

/// Indices that are all 0.
Result<Tensor> ZeroIndices(Context& context, int64_t count);

/// y[i] = x[rows[i]], rows distinct; the gradient goes back to these rows and is zero elsewhere.
Result<Value> GatherRows(Context& context, Tape& tape, const Value& x, const Tensor& rows);

/// y[rows[i]] = x[i] of `count` rows, the others zero.
Result<Value> ScatterRows(Context& context, Tape& tape, const Value& x, const Tensor& rows,
                          int64_t count);

/// y[a_rows[i]] = a[i] and y[b_rows[i]] = b[i]: every row of y comes from one of both.
Result<Value> MergeRows(Context& context, Tape& tape, const Value& a, const Tensor& a_rows,
                        const Value& b, const Tensor& b_rows);

/// x [rows, width], `times` one under the other, as the columns of y [times * rows, columns] from
/// `first_column` on; the others are zero. The gradient is their sum, in f32.
Result<Value> RepeatRows(Context& context, Tape& tape, const Value& x, int64_t times,
                         int64_t first_column, int64_t columns);

}  // namespace weft::engine
