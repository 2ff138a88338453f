#include "common/model/outer_layers.h"

#include <utility>

#include "common/model/parameter_list.h"

namespace weft {

bool IsOuterWeight(const ModelSpec& model, const ParameterInfo& weight) {
  if (weight.block >= 0 || !weight.matrix() || !weight.is_weight()) return false;
  if (weight.role == ParameterRole::kEmbeddingProjection) return model.family == "vit";
  return weight.role == ParameterRole::kHeadTransform || weight.role == ParameterRole::kClassifier;
}

std::vector<ParameterInfo> OuterWeights(const ModelSpec& model) {
  ModelSpec without_blocks = model;
  without_blocks.layers = without_blocks.distinct_blocks = 0;
  std::vector<ParameterInfo> weights;
  for (ParameterInfo& parameter : PlainParametersOf(without_blocks)) {
    if (IsOuterWeight(model, parameter)) weights.push_back(std::move(parameter));
  }
  return weights;
}

}  // namespace weft
