#pragma once

#include "kernels/activation/activation.h"
#include "worker/engine/autograd/tape.h"

namespace weft::engine {

/// GELU(x). Keeps x.
Result<Value> Gelu(Context& context, Tape& tape, const Value& x, kernels::GeluForm form);

/// max(x, 0). Keeps the result.
Result<Value> Relu(Context& context, Tape& tape, const Value& x);

/// tanh(x). Keeps the result.
Result<Value> Tanh(Context& context, Tape& tape, const Value& x);

}  // namespace weft::engine
