#pragma once

#include <cstdint>

#include "worker/engine/data/batch.h"

namespace weft::engine {

/// The first `length` tokens of each sequence of a batch of a causal language model, whose
/// sequences are full and longer. Random numbers are those of sequences of this length, which all
/// micro-batches of the step have.
Batch FirstTokens(const Batch& whole, int64_t length);

}  // namespace weft::engine
