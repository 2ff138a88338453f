#include "worker/engine/optim/parameter_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>

#include "common/glob.h"
#include "common/spec/spec_json.h"

namespace weft::engine {
namespace {

Status PatternWithoutMatch(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string nearest = NearestName(pattern, names);
  return InvalidError("optimizer.groups '" + pattern + "' matches no parameter; hint: " +
                      (nearest.empty() ? "names are like '" + names.front() + "' and '" +
                                             names[names.size() / 2] + "'"
                                       : "did you mean '" + nearest + "'?"));
}

// A pattern names a source by its own name or by that of what is derived from it.
bool Names(const std::string& pattern, const ParameterSet& parameters, int64_t index) {
  const Parameter& parameter = parameters[index];
  return GlobMatches(pattern, parameter.name) ||
         (parameter.source_of >= 0 && GlobMatches(pattern, parameters[parameter.source_of].name));
}

}  // namespace

std::optional<int64_t> BlockOf(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    int64_t block = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), block);
    if (error == std::errc() && end == part.data() + part.size() && block >= 0) return block;
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return std::nullopt;
}

std::vector<int64_t> LayersOf(const std::vector<std::string>& names) {
  std::vector<std::optional<int64_t>> blocks;
  int64_t last_block = -1;
  for (const std::string& name : names) {
    blocks.push_back(BlockOf(name));
    last_block = std::max(last_block, blocks.back().value_or(-1));
  }
  std::vector<int64_t> layers;
  bool after_blocks = false;
  for (const std::optional<int64_t>& block : blocks) {
    after_blocks = after_blocks || block;
    layers.push_back(block ? *block + 1 : after_blocks ? last_block + 2 : 0);
  }
  return layers;
}

Result<std::vector<ParameterRule>> ResolveParameterRules(const OptimizerSpec& spec,
                                                         const ParameterSet& parameters) {
  // Of all ranks: they may have other parameters.
  const std::vector<std::string> names = parameters.Names();
  const std::vector<int64_t> layers = LayersOf(names);
  const int64_t top = layers.empty() ? 0 : *std::max_element(layers.begin(), layers.end());
  std::map<std::string_view, int64_t> layer_of;
  for (size_t i = 0; i < names.size(); ++i) layer_of[names[i]] = layers[i];
  const bool decoupled = spec.name == "adamw" || spec.name == "lion";
  std::vector<ParameterRule> rules;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const double own = parameters[i].learning_rate_scale;
    const double decay = decoupled ? spec.weight_decay / own : spec.weight_decay;
    rules.push_back({own * std::pow(spec.layer_decay,
                                    static_cast<double>(top - layer_of.at(parameters[i].name))),
                     parameters[i].decay() ? decay : 0.0});
  }
  std::vector<bool> grouped(rules.size(), false);
  for (const ParameterGroupSpec& group : spec.groups) {
    std::vector<bool> named(rules.size(), false);
    for (const std::string& pattern : group.parameters) {
      const auto matches = [&](const std::string& name) { return GlobMatches(pattern, name); };
      if (std::none_of(names.begin(), names.end(), matches)) {
        return PatternWithoutMatch(pattern, names);
      }
      for (size_t i = 0; i < rules.size(); ++i) {
        if (Names(pattern, parameters, static_cast<int64_t>(i))) named[i] = true;
      }
    }
    for (size_t i = 0; i < rules.size(); ++i) {
      if (!named[i] || grouped[i]) continue;
      grouped[i] = true;
      rules[i].learning_rate_scale *= group.learning_rate_scale;
      rules[i].weight_decay = group.weight_decay.value_or(rules[i].weight_decay);
    }
  }
  return rules;
}

}  // namespace weft::engine
