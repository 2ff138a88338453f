#include "common/formats/peft_norms.h"

#include <cstdint>
#include <map>
#include <vector>

#include "common/formats/peft_fields.h"
#include "common/formats/peft_modules.h"
#include "common/formats/peft_tokens.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"

namespace weft {
namespace {

constexpr char kType[] = "LN_TUNING";

bool IsNorm(const ParameterInfo& parameter) {
  return parameter.role == ParameterRole::kNorm || parameter.role == ParameterRole::kHeadNorm;
}

/// The layers that `model.peft` trains.
struct TrainedLayers {
  std::set<std::string> norms, others;
  bool whole = true;  ///< Each with all that it has.
};

TrainedLayers TrainedLayersOf(const ModelSpec& model) {
  TrainedLayers layers;
  std::map<std::string, int64_t> tensors, trained;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    const std::string layer = ModuleOf(parameter.name);
    ++tensors[layer];
    if (parameter.frozen) continue;
    ++trained[layer];
    (IsNorm(parameter) ? layers.norms : layers.others).insert(layer);
  }
  for (const auto& [layer, count] : trained) {
    // peft takes a module with the layers inside it.
    const std::string inside = layer + ".";
    const auto next = tensors.lower_bound(inside);
    const bool nested = next != tensors.end() && next->first.starts_with(inside);
    layers.whole = layers.whole && !nested && count == tensors.at(layer);
  }
  return layers;
}

}  // namespace

bool IsNormConfig(const Json& config) {
  return config.value("peft_type", Json()) == kType;
}

std::set<std::string> NormLayers(const ModelSpec& model) {
  std::set<std::string> norms;
  for (const ParameterInfo& parameter : PlainParametersOf(model)) {
    if (IsNorm(parameter)) norms.insert(ModuleOf(parameter.name));
  }
  return norms;
}

bool TunesNorms(const ModelSpec& model) {
  if (model.peft.method != "selective" || !model.peft.trainable_token_indices.empty()) return false;
  const TrainedLayers layers = TrainedLayersOf(model);
  return layers.whole && !layers.norms.empty();
}

Result<PeftSpec> NormsFromConfig(const Json& config, const ModelSpec& model,
                                 const std::set<std::string>& norms) {
  std::vector<std::string> saved, named;
  WEFT_RETURN_IF_ERROR(ReadSavedModules(config, model, saved));
  if (config.value("target_modules", Json()).is_array()) {
    WEFT_RETURN_IF_ERROR(ReadNames(config, "target_modules", named));
  }
  const auto with_saved = [&](std::vector<std::string> modules) {
    modules.insert(modules.end(), saved.begin(), saved.end());
    return modules;
  };
  // The names of the configuration where they say the same, and otherwise the layers.
  ModelSpec tuned = model;
  tuned.peft = PeftSpec();
  tuned.peft.module_names = model.peft.module_names;
  tuned.peft.method = "selective";
  tuned.peft.modules_to_save = with_saved({});
  if (!TrainedLayersOf(tuned).norms.empty()) {
    return InvalidError(HasField("modules_to_save", config["modules_to_save"]) +
                        " with a norm, which is not computed with LN_TUNING; hint: name norms in "
                        "target_modules");
  }
  tuned.peft.modules_to_save = with_saved(named);
  if (!named.empty() && TunesNorms(tuned) && TrainedLayersOf(tuned).norms == norms) {
    return tuned.peft;
  }
  tuned.peft.modules_to_save = with_saved({norms.begin(), norms.end()});
  return tuned.peft;
}

Status AddNorms(const ModelSpec& model, Json& config) {
  WEFT_RETURN_IF_ERROR(CheckTableStaysTied(model));
  const TrainedLayers layers = TrainedLayersOf(model);
  config["peft_type"] = kType;
  config["target_modules"] = layers.norms;
  config["modules_to_save"] = layers.others.empty() ? Json() : Json(layers.others);
  return OkStatus();
}

}  // namespace weft
