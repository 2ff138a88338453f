#pragma once

#include "worker/engine/autograd/tape.h"

namespace weft::engine {

/// x * factor, in place when nobody else looks at x. Keeps nothing.
Result<Value> Scale(Context& context, Tape& tape, Value x, float factor);

}  // namespace weft::engine
