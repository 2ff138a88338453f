#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

// A weight W [out, in] that is the sum of branches, each with a scale for each row (the online
// re-parameterisation of OREPA, Hu et al. 2022, arXiv 2204.00826, with the branches that a linear
// layer can have): W = sum of diag(s_k) W_k, plus diag(s) A^T B with A [rank, out], B [rank, in].
// Its sources are W_0, s_0, W_1, s_1, ..., A, B, s: see FactorsOf.

/// W from the branches of `weight`, an index, of `parameters`.
Status MergeBranches(Context& context, const ParameterSet& parameters, int64_t weight);

/// The gradients of the branches from that of W: dW_k = diag(s_k) dW, ds_k = the row sums of
/// dW ∘ W_k, and for the last dA = (B dW^T) diag(s), dB = A diag(s) dW, ds = the column sums of
/// A ∘ (B dW^T). kExhausted where there is no memory for transposed matrices.
Status SplitBranches(Context& context, const ParameterSet& parameters, int64_t weight);

/// Starts the branches so that W stays what it is, up to the type that the first one is stored in,
/// which has it with scales of one. The scales of the other full ones are zero, and so is B.
Status StartBranches(const Stream& stream, const ParameterSet& parameters, int64_t weight);

}  // namespace weft::engine
