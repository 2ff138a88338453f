#pragma once

#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Whether `weight` is that of a linear layer outside the blocks which can have tensors besides it
/// (TechniqueCost::AdaptersOf): a classifier with a matrix of its own, what a bert has between its
/// blocks and the classifier, or the patch projection of a vit.
bool IsOuterWeight(const ModelSpec& model, const ParameterInfo& weight);

/// These weights, in the order of the forward pass. Does not go through the blocks.
std::vector<ParameterInfo> OuterWeights(const ModelSpec& model);

}  // namespace weft
