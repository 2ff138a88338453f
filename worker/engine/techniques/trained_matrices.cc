#include "worker/engine/techniques/trained_matrices.h"

#include <algorithm>

#include "common/glob.h"

namespace weft::engine {

std::vector<bool> ChooseTrainedMatrices(const std::vector<std::string>& patterns,
                                        const ParameterList& parameters) {
  std::vector<bool> chosen;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    chosen.push_back(parameter.block_matrix() && parameter.trainable() &&
                     (patterns.empty() || MatchesAny(patterns, parameter.name)));
  }
  return chosen;
}

std::vector<int64_t> DerivedMatrices(const ParameterList& parameters) {
  std::vector<int64_t> matrices;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].derived()) matrices.push_back(i);
  }
  std::stable_sort(matrices.begin(), matrices.end(), [&](int64_t a, int64_t b) {
    return parameters[a].logical_shape().dims < parameters[b].logical_shape().dims;
  });
  return matrices;
}

}  // namespace weft::engine
