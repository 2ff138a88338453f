#include "worker/engine/techniques/peft/peft_targets_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "common/full_match.h"
#include "common/glob.h"
#include "common/model/outer_layers.h"
#include "common/model/parameter_name.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"

namespace weft {
namespace {

bool AnyNames(const std::vector<std::string>& targets, const std::string& layer) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return IsNamedLayer(layer, target); });
}

/// The same of a layer outside the blocks.
bool AnyNamesOuter(const std::vector<std::string>& targets, const std::string& layer) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return IsNamedOuterLayer(layer, target); });
}

/// What the first of peft's patterns in a map says that describes the layer of `weight`.
template <class T>
T ByPattern(const std::map<std::string, T>& patterns, const std::string& weight, T otherwise) {
  const std::string layer = LayerOf(weight);
  for (const auto& [pattern, value] : patterns) {
    const Result<bool> fits = FullMatch(PatternOfLastParts(pattern), layer);
    if (fits.ok() && *fits) return value;
  }
  return otherwise;
}

std::vector<std::string> FeedforwardModules(const ModelSpec& model) {
  const std::vector<std::string>& named = model.peft.feedforward_modules;
  if (!named.empty() || !model.peft.target_modules.empty()) return named;
  if (model.experts > 0) return {};
  if (model.family == "gpt2") return {"mlp.c_proj"};
  if (model.family == "llama") return {"down_proj"};
  if (HasTransformers5Names(model)) return {"o_proj", "fc2"};
  return {"output.dense"};
}

}  // namespace

bool AdaptsWeights(const PeftSpec& spec) {
  return spec.method != "none" && spec.method != "selective" && !HasBottlenecks(spec) &&
         !HasVirtualTokens(spec);
}

std::vector<std::string> TargetModules(const ModelSpec& model) {
  if (!model.peft.target_modules.empty() || !model.peft.target_regex.empty()) {
    return model.peft.target_modules;
  }
  if (model.peft.method == "ia3") {
    // peft names w2 of the experts, too, which transformers 5 does not have as layers.
    if (model.experts > 0) return {"k_proj", "v_proj"};
    if (model.family == "gpt2") return {"c_attn", "mlp.c_proj"};
    if (model.family == "llama") return {"k_proj", "v_proj", "down_proj"};
    if (HasTransformers5Names(model)) return {"k_proj", "v_proj", "o_proj", "fc2"};
    return {"key", "value", "output.dense"};
  }
  if (model.family == "gpt2") return {"c_attn"};
  if (model.family == "llama" || HasTransformers5Names(model)) return {"q_proj", "v_proj"};
  return {"query", "value"};
}

bool IsTarget(const ModelSpec& model, const ParameterInfo& weight) {
  if (!AdaptsWeights(model.peft)) return false;
  const bool outer = AdaptsOuterLayers(model.peft) && IsOuterWeight(model, weight);
  if (!weight.block_matrix() && !outer) return false;
  const std::vector<int64_t>& blocks = model.peft.layers_to_transform;
  if (!blocks.empty() && std::find(blocks.begin(), blocks.end(), weight.block) == blocks.end()) {
    return false;
  }
  if (IsSavedWhole(model, weight.name)) return false;
  const std::string layer = LayerOf(weight.name);
  if (model.peft.target_regex.empty()) {
    const std::vector<std::string> targets = TargetModules(model);
    return outer ? AnyNamesOuter(targets, layer) : AnyNames(targets, layer);
  }
  const Result<bool> fits = FullMatch(model.peft.target_regex, layer);
  return fits.ok() && *fits;
}

std::string OuterTarget(const ModelSpec& model) {
  if (!AdaptsOuterLayers(model.peft)) return "";
  for (const ParameterInfo& weight : OuterWeights(model)) {
    if (IsTarget(model, weight)) return LayerOf(weight.name);
  }
  return "";
}

bool AdaptsClassifier(const ModelSpec& model) {
  if (!AdaptsOuterLayers(model.peft)) return false;
  const std::vector<ParameterInfo> weights = OuterWeights(model);
  return std::any_of(weights.begin(), weights.end(), [&](const ParameterInfo& weight) {
    return weight.role == ParameterRole::kClassifier && IsTarget(model, weight);
  });
}

bool ScalesInputs(const ModelSpec& model, const ParameterInfo& weight) {
  return model.peft.method == "ia3" && AnyNames(FeedforwardModules(model), LayerOf(weight.name));
}

bool IsSavedWhole(const ModelSpec& model, const std::string& parameter) {
  const std::vector<std::string>& modules = model.peft.modules_to_save;
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return IsOfModule(parameter, module); });
}

bool DecomposesWeights(const PeftSpec& spec) {
  return spec.init == "pissa" || spec.init == "olora";
}

int64_t RankOf(const PeftSpec& spec, const std::string& weight) {
  if (spec.method == "adalora") return spec.adalora.init_r;
  return ByPattern(spec.rank_pattern, weight, spec.rank);
}

double LoraScale(const PeftSpec& spec, const std::string& weight) {
  const auto rank = static_cast<double>(RankOf(spec, weight));
  if (spec.method == "adalora") return (spec.alpha > 0 ? spec.alpha : rank) / (rank + 1e-5);
  return ByPattern(spec.alpha_pattern, weight, spec.alpha) /
         (spec.use_rslora ? std::sqrt(rank) : rank);
}

bool IsNamedLayer(const std::string& layer, const std::string& target) {
  return target == "all-linear" || GlobMatches(target, layer) || layer.ends_with("." + target);
}

bool IsNamedOuterLayer(const std::string& layer, const std::string& target) {
  return target != "all-linear" && IsNamedLayer(layer, target);
}

bool IsTokenLayer(const std::string& layer, const std::string& target) {
  return layer == target || layer.ends_with("." + target);
}

bool IsOfModule(const std::string& parameter, const std::string& module) {
  if (module.find('*') != std::string::npos) return GlobMatches(module, parameter);
  return ("." + parameter).find("." + module + ".") != std::string::npos;
}

std::string PatternOfLastParts(const std::string& pattern) {
  return "(.*\\.)?(" + pattern + ")";
}

}  // namespace weft
