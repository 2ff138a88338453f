#include "common/model/over_parameterization.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/glob.h"

namespace weft {

bool IsOverParameterized(const ModelSpec& model, const ParameterInfo& parameter) {
  const OverParameterizationSpec& spec = model.over_parameterization;
  if (spec.kind == "none" || !parameter.matrix() || parameter.block < 0) return false;
  if (!IsTrained(model, parameter)) return false;
  return spec.layers.empty() ||
         std::any_of(spec.layers.begin(), spec.layers.end(), [&](const std::string& pattern) {
           return GlobMatches(pattern, parameter.name);
         });
}

std::vector<ParameterInfo> FactorsOf(const OverParameterizationSpec& spec,
                                     const ParameterInfo& weight) {
  std::vector<ParameterInfo> factors;
  const auto add = [&](const std::string& what, std::vector<int64_t> shape) {
    factors.push_back(
        {weight.name + "." + what, std::move(shape), weight.kind, weight.block, false});
  };
  if (spec.kind == "linear_expansion") {
    const int64_t out = weight.shape[0], in = weight.shape[1];
    const auto inner = static_cast<int64_t>(
        std::llround(spec.inner_ratio * static_cast<double>(std::min(out, in))));
    add("expansion_out", {inner, out});
    add("expansion_in", {inner, in});
  } else if (spec.kind == "majority_kernels") {
    for (int64_t i = 0; i < spec.copies; ++i) add("copy_" + std::to_string(i), weight.shape);
  }
  return factors;
}

}  // namespace weft
