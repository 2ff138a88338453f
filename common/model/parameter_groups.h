#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Visits ParametersOfRank, in their order. Where no pattern of the model can tell blocks apart,
/// one block is listed and visited for all of them: names are then those of the first block.
void VisitParametersOfRank(const ModelSpec& model, int64_t tensor, int64_t rows,
                           const std::function<void(const ParameterInfo&)>& visit);

/// Parameters that differ in nothing but their names.
struct ParameterGroup {
  ParameterInfo first;
  int64_t blocks = 1;   ///< Distinct blocks that have one, from first.block on.
  int64_t experts = 1;  ///< Of each of those experts that have one, from first.expert on.
};

/// ParametersOfRank, those of all blocks and experts together where no pattern of the model can
/// tell them apart: for sums, in a time that does not depend on the number of blocks.
std::vector<ParameterGroup> ParameterGroupsOfRank(const ModelSpec& model, int64_t tensor,
                                                  int64_t rows = 1);

}  // namespace weft
