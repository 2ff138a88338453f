#include "worker/engine/techniques/trained_matrices.h"

#include <algorithm>

#include "common/glob.h"
#include "common/spec/spec_json.h"

namespace weft::engine {

Result<std::vector<bool>> ChooseTrainedMatrices(std::string_view field,
                                                const std::vector<std::string>& patterns,
                                                const ParameterList& parameters) {
  std::vector<bool> chosen(static_cast<size_t>(parameters.size()), false);
  std::vector<bool> eligible = chosen;
  std::vector<std::string> names;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    eligible[i] = parameters[i].block_matrix() && parameters[i].trainable();
    if (eligible[i]) names.push_back(parameters[i].name);
  }
  if (patterns.empty()) return eligible;
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!eligible[i] || !GlobMatches(pattern, parameters[i].name)) continue;
      chosen[i] = used = true;
    }
    if (used) continue;
    const std::string nearest = NearestName(pattern, names);
    return InvalidError(std::string(field) + " '" + pattern +
                        "' matches no trained matrix of a block; hint: " +
                        (nearest.empty() ? names.empty() ? "model.freeze leaves none to train"
                                                         : "names are like " + names.front()
                                         : "did you mean '" + nearest + "'?"));
  }
  return chosen;
}

std::vector<int64_t> DerivedMatrices(const ParameterList& parameters) {
  std::vector<int64_t> matrices;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].derived()) matrices.push_back(i);
  }
  std::stable_sort(matrices.begin(), matrices.end(), [&](int64_t a, int64_t b) {
    return parameters[a].shape.dims < parameters[b].shape.dims;
  });
  return matrices;
}

}  // namespace weft::engine
