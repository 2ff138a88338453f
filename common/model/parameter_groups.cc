#include "common/model/parameter_groups.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

ModelSpec WithOneBlock(ModelSpec model) {
  model.layers = model.distinct_blocks = 1;
  return model;
}

}  // namespace

RepeatedBlock RepeatedBlockOfRank(const ModelSpec& model, int64_t tensor, int64_t rows,
                                  int64_t most_experts) {
  RepeatedBlock repeated;
  const int64_t blocks = DistinctBlocks(model);
  const bool alike = blocks > 1 && !DiffersByBlock(model);
  std::vector<ParameterInfo>& parameters = repeated.parameters;
  parameters = ParametersOfRank(alike ? WithOneBlock(model) : model, tensor, rows, most_experts);
  if (!alike) return repeated;
  repeated.blocks = blocks;
  const auto of_block = [](const ParameterInfo& parameter) { return parameter.block >= 0; };
  const auto begin = std::find_if(parameters.begin(), parameters.end(), of_block);
  const auto end = std::find_if_not(begin, parameters.end(), of_block);
  for (auto each = end; each != parameters.end(); ++each) each->unit = blocks + 1;
  repeated.begin = static_cast<size_t>(begin - parameters.begin());
  repeated.end = static_cast<size_t>(end - parameters.begin());
  return repeated;
}

std::vector<ParameterGroup> ParameterGroupsOfRank(const ModelSpec& model, int64_t tensor,
                                                  int64_t rows) {
  const bool alike = !DiffersByBlock(model);
  RepeatedBlock listed = RepeatedBlockOfRank(model, tensor, rows, alike ? 1 : model.experts);
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < listed.parameters.size(); ++i) {
    ParameterInfo& parameter = listed.parameters[i];
    const bool of_expert = alike && parameter.expert == 0;
    const int64_t blocks = i >= listed.begin && i < listed.end ? listed.blocks : 1;
    groups.push_back({std::move(parameter), blocks, of_expert ? model.experts : 1});
  }
  return groups;
}

}  // namespace weft
