#pragma once

#include <vector>

#include "common/model/parameter_list.h"

namespace weft {

/// Whether model.over_parameterization trains `parameter` as something larger: a trained matrix of
/// a block that one of its patterns names, or every one when it has none.
bool IsOverParameterized(const ModelSpec& model, const ParameterInfo& parameter);

/// What is trained in the place of `weight`, a W [out, in]:
///   linear_expansion: "<weight>.expansion_out" E [inner, out] and "<weight>.expansion_in"
///     F [inner, in], W = E^T F;
///   majority_kernels: "<weight>.copy_0" and so on, each [out, in].
std::vector<ParameterInfo> FactorsOf(const OverParameterizationSpec& spec,
                                     const ParameterInfo& weight);

}  // namespace weft
