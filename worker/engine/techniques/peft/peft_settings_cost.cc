#include "worker/engine/techniques/peft/peft_settings_cost.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/full_match.h"
#include "common/model/model_sizes.h"
#include "common/model/outer_layers.h"
#include "common/model/parameter_name.h"
#include "common/spec/spec_json.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/techniques/peft/token_adapters_cost.h"

namespace weft {
namespace {

/// The weights of the layers of blocks, those of experts too.
std::vector<ParameterInfo> BlockWeights(const ModelSpec& model) {
  std::vector<ParameterInfo> weights;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (ParameterInfo& parameter : PlainBlockParameters(model, block)) {
      if (parameter.block_matrix()) weights.push_back(std::move(parameter));
    }
  }
  return weights;
}

/// The layers outside the blocks that the method adapts where targets name them.
std::vector<std::string> OuterLayers(const ModelSpec& model) {
  std::vector<std::string> layers;
  if (!AdaptsOuterLayers(model.peft)) return layers;
  for (const ParameterInfo& weight : OuterWeights(model)) layers.push_back(LayerOf(weight.name));
  return layers;
}

std::string LastPartOf(const std::string& layer) {
  return layer.substr(layer.rfind('.') + 1);
}

/// The classifier that has the token embedding as its weight, where the method would adapt one of
/// its own; "": none.
std::string TiedClassifier(const ModelSpec& model) {
  const bool tied = !model.untied_classifier && HeadOf(model) != "classification";
  if (!tied || !AdaptsOuterLayers(model.peft)) return "";
  return model.family == "bert" ? "cls.predictions.decoder" : "lm_head";
}

Status NamesTiedClassifier(const ModelSpec& model, const std::string& field,
                           const std::string& target) {
  return InvalidError("model.peft." + field + " '" + target + "' names the classifier " +
                      TiedClassifier(model) +
                      ", whose weight is the token embedding; hint: model.untied_classifier true, "
                      "or targets without it");
}

/// What the method can adapt.
std::string AdaptedKind(const PeftSpec& spec) {
  return AdaptsOuterLayers(spec) ? "linear layer" : "linear layer of a block";
}

Status CheckTargets(const ModelSpec& model, const std::vector<std::string>& targets,
                    const std::string& field) {
  std::vector<std::string> layers, endings;
  for (const ParameterInfo& weight : BlockWeights(model)) {
    layers.push_back(LayerOf(weight.name));
    endings.push_back(LastPartOf(layers.back()));
  }
  const std::string tied = TiedClassifier(model);
  const std::vector<std::string> outer = OuterLayers(model);
  for (const std::string& layer : outer) endings.push_back(LastPartOf(layer));
  const std::string tokens = model.peft.method == "lora" ? LayerOf(TokenTable(model)) : "";
  endings.push_back(LastPartOf(tokens));
  for (const std::string& target : targets) {
    const auto named = [&](const std::string& layer) { return IsNamedLayer(layer, target); };
    const auto named_outer = [&](const std::string& layer) {
      return IsNamedOuterLayer(layer, target);
    };
    if (std::any_of(layers.begin(), layers.end(), named)) continue;
    if (std::any_of(outer.begin(), outer.end(), named_outer)) continue;
    if (IsTokenLayer(tokens, target)) continue;
    if (!tied.empty() && IsNamedOuterLayer(tied, target)) {
      return NamesTiedClassifier(model, field, target);
    }
    const std::string nearest = NearestName(target, endings);
    return InvalidError(
        "model.peft." + field + " '" + target + "' names no " + AdaptedKind(model.peft) +
        "; hint: " +
        (nearest.empty() ? "names are like " + layers.front() : "did you mean '" + nearest + "'?"));
  }
  return OkStatus();
}

/// Whether `pattern` is a regular expression that describes a layer.
Status CheckRegex(const ModelSpec& model, const std::string& pattern, const std::string& field) {
  std::vector<std::string> layers;
  if (model.peft.method == "lora") layers.push_back(LayerOf(TokenTable(model)));
  for (std::string& layer : OuterLayers(model)) layers.push_back(std::move(layer));
  for (const ParameterInfo& weight : BlockWeights(model)) layers.push_back(LayerOf(weight.name));
  for (const std::string& layer : layers) {
    const Result<bool> fits = FullMatch(pattern, layer);
    if (!fits.ok()) return fits.status().WithContext("model.peft." + field);
    if (*fits) return OkStatus();
  }
  return InvalidError("model.peft." + field + " '" + pattern + "' describes no " +
                      AdaptedKind(model.peft) + "; hint: names are like " + layers.back());
}

Status CheckSaved(const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const std::string& module : model.peft.modules_to_save) {
    bool found = false;
    for (const ParameterInfo& parameter : PlainParametersOf(model)) {
      found = found || IsOfModule(parameter.name, module);
      const std::string own = parameter.name.substr(0, parameter.name.rfind('.'));
      modules.push_back(own.substr(own.rfind('.') + 1));
    }
    if (found) continue;
    const std::string nearest = NearestName(module, modules);
    return InvalidError("model.peft.modules_to_save '" + module + "' names nothing of the model" +
                        (nearest.empty() ? "" : "; hint: did you mean '" + nearest + "'?"));
  }
  return OkStatus();
}

/// kInvalid where the experts of a layer have different adapters.
Status CheckExpertsAlike(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  std::vector<ParameterInfo> first;  // the weights of the first expert of the block
  size_t next = 0;
  for (const ParameterInfo& weight : BlockWeights(model)) {
    if (weight.expert < 0) continue;
    if (weight.expert == 0) {
      if (!first.empty() && first.back().block != weight.block) first.clear();
      first.push_back(weight);
      continue;
    }
    const ParameterInfo& same = first[next++ % first.size()];
    const bool adapts = IsTarget(model, weight);
    const bool alike = adapts == IsTarget(model, same) &&
                       (!adapts || (RankOf(spec, weight.name) == RankOf(spec, same.name) &&
                                    LoraScale(spec, weight.name) == LoraScale(spec, same.name)));
    if (alike) continue;
    return InvalidError("model.peft adapts " + LayerOf(weight.name) + " otherwise than " +
                        LayerOf(same.name) +
                        ", and the experts of a layer have adapters alike, as transformers 5 has "
                        "them in one tensor; hint: names without the number of an expert (w1), and "
                        "all experts of a layer in model.peft.modules_to_save or none");
  }
  return OkStatus();
}

}  // namespace

Status CheckSettings(const PeftSpec& spec) {
  const auto only = [&](bool asked, const char* field, const std::string& method,
                        std::initializer_list<std::string_view> others = {}) {
    const bool fits = spec.method == method ||
                      std::find(others.begin(), others.end(), spec.method) != others.end();
    return !asked || fits ? OkStatus()
                          : InvalidError("model.peft." + std::string(field) + " with method " +
                                         spec.method + "; hint: model.peft.method " + method);
  };
  const PeftSpec unset;
  WEFT_RETURN_IF_ERROR(only(spec.adalora != unset.adalora, "adalora", "adalora"));
  if (spec.method == "adalora" && spec.rank != unset.rank) {
    return InvalidError(
        "model.peft.rank with method adalora, whose ranks change; hint: model.peft.adalora.init_r");
  }
  WEFT_RETURN_IF_ERROR(only(spec.use_rslora, "use_rslora", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.use_dora, "use_dora", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.dropout > 0, "dropout", "lora", {"adalora"}));
  WEFT_RETURN_IF_ERROR(only(spec.init != "default", "init", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.loraplus_lr_ratio != 1, "loraplus_lr_ratio", "lora"));
  WEFT_RETURN_IF_ERROR(
      only(!spec.alpha_pattern.empty(), "alpha_pattern", "lora", {"loha", "lokr"}));
  WEFT_RETURN_IF_ERROR(only(!spec.feedforward_modules.empty(), "feedforward_modules", "ia3"));
  WEFT_RETURN_IF_ERROR(
      only(!spec.rank_pattern.empty(), "rank_pattern", "lora", {"miss", "loha", "lokr"}));
  WEFT_RETURN_IF_ERROR(only(spec.decompose_both, "decompose_both", "lokr"));
  WEFT_RETURN_IF_ERROR(
      only(spec.decompose_factor != unset.decompose_factor, "decompose_factor", "lokr"));
  WEFT_RETURN_IF_ERROR(only(spec.oft_block_size != unset.oft_block_size, "oft_block_size", "oft"));
  WEFT_RETURN_IF_ERROR(only(spec.d_initial != unset.d_initial, "d_initial", "vera"));
  if (!spec.target_modules.empty() && !spec.target_regex.empty()) {
    return InvalidError(
        "model.peft.target_modules and target_regex say the same in two ways; hint: one of them");
  }
  const bool targets = !spec.target_modules.empty() || !spec.target_regex.empty();
  if (!AdaptsWeights(spec) && targets) {
    const std::string instead = spec.method == "selective" ? "modules_to_save" : "method lora";
    return InvalidError("model.peft.method " + spec.method +
                        " has no adapters of weights, and there are targets for them; hint: "
                        "model.peft." +
                        instead);
  }
  if (spec.method == "selective" && spec.modules_to_save.empty() &&
      spec.trainable_token_indices.empty()) {
    return InvalidError(
        "model.peft.method selective trains what modules_to_save and trainable_token_indices name, "
        "and they name nothing; hint: model.peft.modules_to_save ['*.bias']");
  }
  return OkStatus();
}

Status CheckPeftNames(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  if (spec.module_names != kTransformers4Names && model.family != "vit") {
    return InvalidError("model.peft.module_names " + spec.module_names + " with family " +
                        model.family +
                        ", whose modules have the same names in both; hint: leave it out");
  }
  WEFT_RETURN_IF_ERROR(CheckSaved(model));
  WEFT_RETURN_IF_ERROR(CheckTokenAdapters(model));
  for (const int64_t layer : spec.layers_to_transform) {
    if (layer >= 0 && layer < DistinctBlocks(model)) continue;
    return InvalidError("model.peft.layers_to_transform has " + std::to_string(layer) +
                        ", and the model has blocks 0 to " +
                        std::to_string(DistinctBlocks(model) - 1) + "; hint: one of these");
  }
  if (!AdaptsWeights(spec)) return OkStatus();
  WEFT_RETURN_IF_ERROR(CheckTargets(model, TargetModules(model), "target_modules"));
  if (!spec.target_regex.empty()) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, spec.target_regex, "target_regex"));
    const std::string tied = TiedClassifier(model);
    const Result<bool> fits = FullMatch(spec.target_regex, tied);
    if (!tied.empty() && spec.layers_to_transform.empty() && fits.ok() && *fits) {
      return NamesTiedClassifier(model, "target_regex", spec.target_regex);
    }
  }
  WEFT_RETURN_IF_ERROR(CheckTargets(model, spec.feedforward_modules, "feedforward_modules"));
  for (const auto& [pattern, rank] : spec.rank_pattern) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, PatternOfLastParts(pattern), "rank_pattern"));
    if (rank >= 1 && rank <= 4096) continue;
    return InvalidError("model.peft.rank_pattern '" + pattern + "' has the rank " +
                        std::to_string(rank) + "; hint: 1 to 4096");
  }
  for (const auto& [pattern, alpha] : spec.alpha_pattern) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, PatternOfLastParts(pattern), "alpha_pattern"));
    if (!(alpha < 0)) continue;
    return InvalidError("model.peft.alpha_pattern '" + pattern + "' is negative; hint: 0 or more");
  }
  if (spec.method == "lora") WEFT_RETURN_IF_ERROR(CheckExpertsAlike(model));
  std::vector<ParameterInfo> weights = BlockWeights(model);
  for (ParameterInfo& weight : OuterWeights(model)) weights.push_back(std::move(weight));
  for (const ParameterInfo& weight : weights) {
    if (!IsTarget(model, weight)) continue;
    if (ScalesInputs(model, weight) && !EndsSubLayer(weight.role)) {
      return InvalidError("model.peft.feedforward_modules names " + LayerOf(weight.name) +
                          ", which does not end a sub-layer; hint: leave it out");
    }
    WEFT_RETURN_IF_ERROR(CheckMerge(spec, weight));
    const int64_t most = std::min(weight.shape[0], weight.shape[1]);
    if (most == 0) continue;  // classes that the data say
    if ((DecomposesWeights(spec) && RankOf(spec, weight.name) > most) ||
        (spec.method == "miss" && RankOf(spec, weight.name) > weight.shape[1])) {
      return InvalidError("model.peft.rank " + std::to_string(RankOf(spec, weight.name)) +
                          " is more than " + LayerOf(weight.name) + " has, " +
                          std::to_string(most) + "; hint: a smaller rank");
    }
  }
  return OkStatus();
}

}  // namespace weft
