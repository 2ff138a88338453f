#pragma once

#include <cstdint>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"

namespace weft {

/// ParametersOfRank, in their order, with one block for all of them where no pattern of the model
/// can tell blocks apart.
struct RepeatedBlock {
  std::vector<ParameterInfo> parameters;
  size_t begin = 0;    ///< Parameters of the block, ...
  size_t end = 0;      ///< ... and their end. All others are there once.
  int64_t blocks = 1;  ///< That have what it has; each is a unit more.
};
RepeatedBlock RepeatedBlockOfRank(const ModelSpec& model, int64_t tensor, int64_t rows = 1,
                                  int64_t most_experts = INT64_MAX);

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
