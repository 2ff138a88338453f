#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

// Weights W [out, in] = U V^T + M of model.low_rank_core (Mohtashami et al. 2022, arXiv
// 2106.08895), each derived from its factors and its rest (CoreTensorsOf). Some steps mask M to
// zero: what is left, the core, is a network of its own. Of tensor-parallel ranks each has some
// rows or columns of a W, the same of its M and of the factor of that side, and all of the other
// factor.

/// Renews W: U V^T, with M where `whole`.
Status MergeCores(Context& context, const ParameterSet& parameters, bool whole);

/// Computes the gradients of U, V and M from those of these W, of M zeros unless `whole`.
/// kExhausted when there is no memory for a packed gradient.
Status SplitCoreGradients(Context& context, const ParameterSet& parameters,
                          std::span<const int64_t> weights, bool whole);

/// Sums the gradients, [count] f32, of factors that all of `tensor_ranks` have: each has computed
/// those of its part of W. kExhausted when there is no memory for one tensor of all of these.
Status SumFactorGradients(Context& context, const std::vector<TensorView>& gradients,
                          Collective& tensor_ranks);

}  // namespace weft::engine
