#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

// Weights that are trained as something larger than what is deployed (model.over_parameterization).
// A weight W [out, in] keeps its place in the network: forward and backward pass know it alone, and
// ranks sum its gradient. Its factors are its sources (ParameterList::Derive) and meet it twice a
// step: MergeWeights computes W before the forward pass, SplitGradients computes their gradients
// from its own after the backward pass. What that costs does not grow with the tokens of a step.
//   linear_expansion (ExpandNets, Guo et al. 2020, arXiv 1811.10495): W = E^T F with E [inner, out]
//     and F [inner, in]; dE = F dW^T, dF = E dW.
//   majority_kernels (arXiv 2402.05033): W = sum of p_i W_i with p drawn uniformly from all convex
//     combinations (the flat Dirichlet distribution) for each step and weight; dW_i = p_i dW. In
//     evaluation and export all p_i are 1 / copies.
//   branches (OREPA): see branches.h.

/// The random key of a mixture: the same for all ranks, after a restart, in recomputation.
struct MixtureKey {
  uint64_t seed = 0;
  int64_t step = 0;
};

/// The weights p of `copies` copies of the parameter `name`: sums to 1 exactly.
std::vector<float> MixtureOf(const MixtureKey& key, const std::string& name, int64_t copies);

/// Renews the values of weights that have factors: those of a step, or with a null `key` those of
/// evaluation.
Status MergeWeights(Context& context, const OverParameterizationSpec& spec,
                    const ParameterSet& parameters, const MixtureKey* key);

/// Computes the gradients of factors from those of these `weights`, which MergeWeights made with
/// the same key. kExhausted when there is no memory for a packed gradient.
Status SplitGradients(Context& context, const OverParameterizationSpec& spec,
                      const ParameterSet& parameters, std::span<const int64_t> weights,
                      const MixtureKey& key);

}  // namespace weft::engine
