#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Which rows of a larger table a token table is: others have the rest, and tokens of theirs add
/// nothing here.
struct EmbeddingPart {
  int64_t first_row = 0;
  int64_t vocabulary = 0;  ///< Rows of the whole table; 0: the table is all of it.
};

/// out[t] = token_table[tokens[t]] + position_table[positions[t]].
struct EmbeddingForwardArgs {
  TensorView tokens;          ///< [count] i32, each in [0, vocabulary)
  TensorView positions;       ///< [count] i32, each in [0, context); or none
  TensorView token_table;     ///< [vocabulary, width] f32 or bf16
  TensorView position_table;  ///< [context, width], the same type; or none
  TensorView out;             ///< [count, width] f32, bf16 or f16
  EmbeddingPart part = {};
};

/// Adds dout rows to the rows of the tables they came from, each table row in token order.
struct EmbeddingBackwardArgs {
  TensorView tokens;
  TensorView positions;        ///< or none
  TensorView dout;             ///< [count, width] f32, bf16 or f16
  TensorView dtoken_table;     ///< [vocabulary, width] f32, added to; or none
  TensorView dposition_table;  ///< [context, width] f32, added to; or none
  EmbeddingPart part = {};
};

/// An index out of range is kInvalid and named on the CPU. On CUDA, where that would mean to wait
/// for the device, it makes its row of `out` NaN, and its row of `dout` goes nowhere. Deterministic
/// for any number of threads.
WEFT_DEVICE_OP(EmbeddingForward, EmbeddingForwardArgs)
WEFT_DEVICE_OP(EmbeddingBackward, EmbeddingBackwardArgs)

}  // namespace weft::kernels
