#pragma once

#include <cstdint>
#include <span>

#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

// Coefficients of heads and neurons. A coefficient multiplies what its head, or its neuron, gives
// to the weight W [out, in] behind it: W_unscaled diag(c) x = W_unscaled (c * x). So W keeps its
// place in the network, and is derived (ParameterList::Derive) from W_unscaled [out, in] and c [n],
// each for in / n successive columns.

/// Renews the values of weights that have coefficients.
Status MergeCoefficients(Context& context, const ParameterSet& parameters);

/// Computes the gradients of W_unscaled and c from those of these W, which MergeCoefficients made.
Status SplitCoefficientGradients(Context& context, const ParameterSet& parameters,
                                 std::span<const int64_t> weights);

}  // namespace weft::engine
