#include "worker/engine/optim/parameter_rules.h"

#include <cmath>
#include <string>

#include "common/glob.h"
#include "common/model/name_patterns.h"

namespace weft::engine {
namespace {

// Patterns name a source by its own name or by that of what is derived from it, and a tensor in
// the place of a weight likewise.
bool IsNamed(const std::vector<std::string>& patterns, const ParameterList& parameters,
             int64_t index) {
  const Parameter& parameter = parameters[index];
  return MatchesAny(patterns, parameter.name) || MatchesAny(patterns, parameter.in_place_of) ||
         (parameter.source_of >= 0 && MatchesAny(patterns, parameters[parameter.source_of].name));
}

}  // namespace

std::vector<int64_t> LayersOf(const ParameterList& parameters) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const int64_t last = parameter.unit == 0 ? 0 : parameters.blocks() + 1;
    layers.push_back(parameter.block >= 0 ? parameter.block + 1 : last);
  }
  return layers;
}

Result<std::vector<ParameterRule>> ResolveParameterRules(const OptimizerSpec& spec,
                                                         const ParameterList& parameters) {
  // Takes the names of all ranks: others may have other parameters.
  const std::vector<std::string> names = parameters.Names();
  const std::vector<int64_t> layers = LayersOf(parameters);
  const int64_t top = parameters.blocks() + 1;
  const bool decoupled = spec.name == "adamw" || spec.name == "lion";
  std::vector<ParameterRule> rules;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const double own = parameters[i].learning_rate_scale;
    const bool apart = decoupled && !parameters[i].decay_follows_rate;
    const double decay = apart ? spec.weight_decay / own : spec.weight_decay;
    const auto above = static_cast<double>(top - layers[static_cast<size_t>(i)]);
    const double rate = own * parameters[i].peak_rate_scale * std::pow(spec.layer_decay, above);
    rules.push_back({rate, parameters[i].decay() ? decay : 0.0});
  }
  std::vector<bool> grouped(rules.size(), false);
  for (const ParameterGroupSpec& group : spec.groups) {
    WEFT_RETURN_IF_ERROR(CheckPatterns("optimizer.groups", group.parameters, names));
    for (size_t i = 0; i < rules.size(); ++i) {
      if (grouped[i] || !IsNamed(group.parameters, parameters, static_cast<int64_t>(i))) continue;
      grouped[i] = true;
      rules[i].learning_rate_scale *= group.learning_rate_scale;
      rules[i].weight_decay = group.weight_decay.value_or(rules[i].weight_decay);
    }
  }
  return rules;
}

}  // namespace weft::engine
