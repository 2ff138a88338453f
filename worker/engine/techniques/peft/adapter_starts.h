#pragma once

#include "common/spec/peft_spec.h"
#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Whether adapters start at something that is computed from the weights of the network.
bool StartsFromWeights(const PeftSpec& spec);

/// Gives these adapters their start, where the network has its weights: magnitudes of DoRA become
/// the lengths of rows; with `init` pissa A and B become the largest singular values of a weight
/// with their vectors (Meng et al. 2024, arXiv 2404.02948), with olora the first of its QR factors
/// (Buyukakyuz 2024, arXiv 2406.01775), and what they make is taken off the weight. Each rank
/// computes it from whole weights: `tensor_ranks`, which have a part of each, or none, and ranks
/// that shard values call this together.
Status StartFromWeights(Context& context, const PeftSpec& spec, ParameterSet& parameters,
                        Collective* tensor_ranks);

}  // namespace weft::engine
