#include "common/model/name_patterns.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/glob.h"
#include "common/model/model_shape.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

bool MatchesOneOf(const std::string& pattern, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return GlobMatches(pattern, name); });
}

std::string HintFor(const std::string& pattern, const std::vector<std::string>& names) {
  if (names.empty()) return "model.layers and model.freeze leave none";
  const std::string nearest = NearestName(pattern, names);
  if (!nearest.empty()) return "did you mean '" + nearest + "'?";
  const std::string& another = names[names.size() / 2];
  return "names are like '" + names.front() + "'" +
         (names.size() > 1 ? " and '" + another + "'" : "");
}

/// Some of those that a network has: of its first block, and of what is outside of blocks.
std::vector<std::string> FirstNames(const ModelSpec& model) {
  ModelSpec outside = model;
  outside.layers = outside.distinct_blocks = 0;
  std::vector<ParameterInfo> parameters = PlainParametersOf(outside);
  if (model.layers > 0) {
    for (ParameterInfo& parameter : PlainBlockParameters(model, 0)) {
      parameters.push_back(std::move(parameter));
    }
  }
  std::vector<std::string> names;
  for (ParameterInfo& parameter : parameters) names.push_back(std::move(parameter.name));
  return names;
}

}  // namespace

Status CheckPatterns(const std::string& field, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names, const std::string& what) {
  for (const std::string& pattern : patterns) {
    if (MatchesOneOf(pattern, names)) continue;
    return InvalidError(field + " '" + pattern + "' matches no " + what +
                        "; hint: " + HintFor(pattern, names));
  }
  return OkStatus();
}

Status NothingToTrainError() {
  return InvalidError(
      "model.freeze leaves nothing to train: it matches every parameter; hint: leave out what is "
      "to be trained");
}

std::vector<std::string> ParameterNames(const ModelSpec& model) {
  std::vector<std::string> names;
  for (ParameterInfo& each : ParametersOf(model)) {
    if (!each.in_place_of.empty()) names.push_back(std::move(each.in_place_of));
    names.push_back(std::move(each.name));
  }
  return names;
}

std::vector<std::string> GroupedNames(const ModelSpec& model) {
  std::vector<std::string> names = ParameterNames(model);
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    for (ParameterInfo& source : SourcesOf(model, parameter)) {
      names.push_back(std::move(source.name));
    }
  }
  return names;
}

Status CheckParameterPatterns(const JobSpec& job) {
  const std::vector<std::string>& freeze = job.model.freeze;
  std::vector<std::string> grouped;
  for (const ParameterGroupSpec& group : job.optimizer.groups) {
    grouped.insert(grouped.end(), group.parameters.begin(), group.parameters.end());
  }
  if (!job.model.import_path.empty() || (freeze.empty() && grouped.empty())) return OkStatus();
  // Planners ask often, of networks of many parameters: most patterns match one of the first, and
  // leave another one.
  const std::vector<std::string> first = FirstNames(job.model);
  const auto known = [&](const std::string& pattern) { return MatchesOneOf(pattern, first); };
  const bool trains = std::any_of(first.begin(), first.end(), [&](const std::string& name) {
    return !MatchesAny(freeze, name);
  });
  if (trains && std::all_of(freeze.begin(), freeze.end(), known) &&
      std::all_of(grouped.begin(), grouped.end(), known)) {
    return OkStatus();
  }
  const ModelSpec model = ShapeOf(job).spec;
  WEFT_RETURN_IF_ERROR(CheckPatterns("model.freeze", freeze, ParameterNames(model)));
  // Those in place of a weight are frozen by its name, too.
  const std::vector<ParameterInfo> parameters = ParametersOf(model);
  if (!freeze.empty() && std::all_of(parameters.begin(), parameters.end(),
                                     [](const ParameterInfo& each) { return each.frozen; })) {
    return NothingToTrainError();
  }
  if (grouped.empty()) return OkStatus();
  return CheckPatterns("optimizer.groups", grouped, GroupedNames(model));
}

Status CheckMatrixPatterns(const std::string& field, const std::vector<std::string>& patterns,
                           const ModelSpec& model, bool trained) {
  if (patterns.empty() || !model.import_path.empty()) return OkStatus();
  std::vector<std::string> names;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (ParameterInfo& parameter : PlainBlockParameters(model, block)) {
      if (!parameter.block_matrix() || (trained && parameter.frozen)) continue;
      names.push_back(std::move(parameter.name));
    }
  }
  return CheckPatterns(field, patterns, names,
                       trained ? "trained matrix of a block" : "matrix of a block");
}

}  // namespace weft
