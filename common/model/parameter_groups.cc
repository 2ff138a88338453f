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

void VisitParametersOfRank(const ModelSpec& model, int64_t tensor, int64_t rows,
                           const std::function<void(const ParameterInfo&)>& visit) {
  const int64_t blocks = DistinctBlocks(model);
  const bool alike = blocks > 1 && !DiffersByBlock(model);
  std::vector<ParameterInfo> parameters =
      ParametersOfRank(alike ? WithOneBlock(model) : model, tensor, rows);
  if (!alike) {
    for (const ParameterInfo& parameter : parameters) visit(parameter);
    return;
  }
  const auto of_block = [](const ParameterInfo& parameter) { return parameter.block >= 0; };
  const auto begin = std::find_if(parameters.begin(), parameters.end(), of_block);
  const auto end = std::find_if_not(begin, parameters.end(), of_block);
  for (auto each = parameters.begin(); each != begin; ++each) visit(*each);
  for (int64_t block = 0; block < blocks; ++block) {
    for (auto each = begin; each != end; ++each) {
      each->block = block;
      each->unit = block + 1;
      visit(*each);
    }
  }
  for (auto each = end; each != parameters.end(); ++each) {
    each->unit = blocks + 1;
    visit(*each);
  }
}

std::vector<ParameterGroup> ParameterGroupsOfRank(const ModelSpec& model, int64_t tensor,
                                                  int64_t rows) {
  const bool alike = !DiffersByBlock(model);
  const ModelSpec one = alike && model.layers > 0 ? WithOneBlock(model) : model;
  const int64_t blocks = DistinctBlocks(model) / std::max<int64_t>(DistinctBlocks(one), 1);
  std::vector<ParameterGroup> groups;
  for (ParameterInfo& parameter : ParametersOfRank(one, tensor, rows)) {
    if (alike && parameter.expert > 0) continue;
    const bool of_expert = alike && parameter.expert == 0;
    const int64_t having = parameter.block >= 0 ? blocks : 1;
    groups.push_back({std::move(parameter), having, of_expert ? model.experts : 1});
  }
  return groups;
}

}  // namespace weft
