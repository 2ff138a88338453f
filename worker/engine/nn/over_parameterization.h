#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

// Weights that are trained as something larger than what is deployed (model.over_parameterization).
// A weight W [out, in] keeps its place in the network: forward and backward pass know it alone, and
// ranks sum its gradient. Its factors, which the optimizer updates in its place, meet it twice a
// step: MergeWeights makes W of them before the forward pass, SplitGradients makes their gradients
// of its own after the backward pass. What that costs does not grow with the tokens of a step.
//   Product (ExpandNets, Guo et al. 2020, arXiv 1811.10495): W = E^T F with E [inner, out] and
//     F [inner, in]; dE = F dW^T, dF = E dW.
//   Mixture (Majority Kernels, arXiv 2402.05033): W = sum of p_i W_i with p drawn uniformly from
//     all convex combinations (the flat Dirichlet distribution) for each step and weight;
//     dW_i = p_i dW. In evaluation and export all p_i are 1 / copies.

/// Registers the factors of the weights that `spec` names: trained matrices of blocks. Before
/// Allocate. kInvalid when a pattern names none.
Status OverParameterize(const OverParameterizationSpec& spec, ParameterSet& parameters);

/// What a mixture is drawn by: the same for all ranks, after a restart, in recomputation.
struct MixtureKey {
  uint64_t seed = 0;
  int64_t step = 0;
};

/// The weights p of `copies` copies of the parameter `name`: sums to 1 exactly.
std::vector<float> MixtureOf(const MixtureKey& key, const std::string& name, int64_t copies);

/// Renews the values of weights that have factors: those of a step, or with a null `key` those of
/// evaluation.
Status MergeWeights(Context& context, const ParameterSet& parameters, const MixtureKey* key);

/// Makes the gradients of factors of those of their weights, which MergeWeights made with the same
/// key. kExhausted when there is no memory for a packed gradient.
Status SplitGradients(Context& context, const ParameterSet& parameters, const MixtureKey& key);

enum class FactorStart : uint8_t {
  kDrawn,   ///< All parameters have been drawn.
  kLoaded,  ///< The weights have been loaded; their factors are still as drawn.
};

/// Starts the factors. Those of a product are the weight and an identity, so that the network is
/// the plain one; what `inner` exceeds the weight's smaller side by is random beside zeros. Copies
/// of a mixture are drawn independently with a variance that gives mixtures that of the weight on
/// average (the deviation grows by sqrt((copies + 1) / 2)), or are all equal to a loaded weight.
/// Then merges as for evaluation.
Status StartFactors(Context& context, const ParameterSet& parameters, FactorStart start);

}  // namespace weft::engine
