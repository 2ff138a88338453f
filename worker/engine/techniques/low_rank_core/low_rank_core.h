#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

// Weights W [out, in] = U V^T + M of model.low_rank_core (Mohtashami et al. 2022, arXiv
// 2106.08895), each derived from its factors and its rest (CoreTensorsOf). Some steps mask M to
// zero: what is left, the core, is a network of its own.

/// Renews W: U V^T, with M where `whole`.
Status MergeCores(Context& context, const ParameterSet& parameters, bool whole);

/// Computes the gradients of U, V and M from those of W, of M zeros unless `whole`. kExhausted when
/// there is no memory for a packed gradient.
Status SplitCoreGradients(Context& context, const ParameterSet& parameters, bool whole);

}  // namespace weft::engine
