#pragma once

#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

/// What model.over_parameterization trains in the place of `weight`, a W [out, in]:
///   linear_expansion: "<weight>.expansion_out" E [inner, out] and "<weight>.expansion_in"
///     F [inner, in], W = E^T F;
///   majority_kernels: "<weight>.copy_0" and so on, each [out, in];
///   branches: "<weight>.branch_0" [out, in] and "<weight>.branch_0_scale" [out], and so on;
///     for the last of them "<weight>.branch_out" [rank, out], "<weight>.branch_in" [rank, in] and
///     "<weight>.branch_low_rank_scale" [out], with a rank of a quarter of the smaller side.
std::vector<ParameterInfo> FactorsOf(const OverParameterizationSpec& spec,
                                     const ParameterInfo& weight);

}  // namespace weft
