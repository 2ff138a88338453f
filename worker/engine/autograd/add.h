#pragma once

#include "worker/engine/autograd/tape.h"

namespace weft::engine {

/// a + b, of the same shape and type. Keeps nothing.
Result<Value> Add(Context& context, Tape& tape, const Value& a, const Value& b);

}  // namespace weft::engine
