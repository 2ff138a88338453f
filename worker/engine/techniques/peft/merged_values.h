#pragma once

#include <span>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// On the host, in double precision: the values of the matrix that NewMergedWeight says, of a
/// weight of `values` and tensors of these values. `parameters` has the factors that adapters of
/// vera share.
std::vector<float> MergedValues(const ModelSpec& model, const ParameterSet& parameters,
                                const ParameterInfo& weight, std::span<const float> values,
                                const std::vector<std::vector<float>>& tensors);

}  // namespace weft::engine
