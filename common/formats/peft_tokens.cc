#include "common/formats/peft_tokens.h"

#include <algorithm>
#include <cstdint>

#include "common/formats/peft_fields.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

constexpr char kOfLora[] = "trainable_token_indices";
constexpr char kAlone[] = "token_indices";

/// Whether a name in a configuration is that of `layer`.
bool Names(const Json& name, const std::string& layer) {
  if (!name.is_string() || layer.empty()) return false;
  const std::string text = name.get<std::string>();
  return layer == text || layer.ends_with("." + text);
}

}  // namespace

std::string TokenLayer(const ModelSpec& model) {
  for (const ParameterInfo& parameter : PlainEmbeddingParameters(model)) {
    if (parameter.role == ParameterRole::kTokenEmbedding) return LayerOf(parameter.name);
  }
  return "";
}

bool AdaptsTokenLayer(const ModelSpec& model) {
  const std::vector<ParameterInfo> tensors = EmbeddingGraftsOf(model);
  return std::any_of(tensors.begin(), tensors.end(), [](const ParameterInfo& tensor) {
    return tensor.name.ends_with(kTableFactorA);
  });
}

bool IsTokenRowsAlone(const PeftSpec& spec) {
  return spec.method == "selective" && spec.modules_to_save.empty() &&
         !spec.trainable_token_indices.empty();
}

std::string TiedLayer(const ModelSpec& model) {
  if (model.untied_classifier || HeadOf(model) == "classification") return "";
  return model.family == "bert" ? "cls.predictions.decoder" : "lm_head";
}

Status ReadTokenRows(const Json& config, const ModelSpec& model, PeftSpec& spec) {
  const bool alone = spec.method == "selective";
  const std::string key = alone ? kAlone : kOfLora;
  const std::string layer = TokenLayer(model);
  Json tokens = config.value(key, Json());
  const auto of_another = [&](const std::string& field, const Json& value) {
    return InvalidError(HasField(field, value) + ", which is not the token embedding '" + layer +
                        "' of the model");
  };
  if (alone) {
    const Json target = config.value("target_modules", Json());
    const bool list = target.is_array() && target.size() == 1;
    if (!target.is_null() && !Names(list ? target[0] : target, layer)) {
      return of_another("target_modules", target);
    }
    if (config.value("init_weights", Json(true)) != true) {
      return NotComputed("init_weights", config["init_weights"]);
    }
  } else if (tokens.is_object()) {
    if (tokens.size() != 1 || !Names(tokens.begin().key(), layer)) return of_another(key, tokens);
    tokens = Json(tokens.begin().value());
  }
  if (!alone && IsUnset(tokens)) return OkStatus();
  if (!tokens.is_array() || tokens.empty()) {
    return InvalidError(HasField(key, tokens) + ", which is no list of tokens");
  }
  for (const Json& token : tokens) {
    if (!token.is_number_integer() || token < 0 || token >= model.vocab_size) {
      return InvalidError(HasField(key, tokens) + ", and the model has tokens 0 to " +
                          std::to_string(model.vocab_size - 1));
    }
    spec.trainable_token_indices.push_back(token.get<int64_t>());
  }
  return OkStatus();
}

Status CheckTableStaysTied(const ModelSpec& model) {
  if (model.untied_classifier || model.family == "vit") return OkStatus();
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.role != ParameterRole::kTokenEmbedding || parameter.frozen) continue;
    return InvalidError("peft unties '" + parameter.name +
                        "' from the classifier, which trains with it here; hint: --format hf");
  }
  return OkStatus();
}

void AddTokenRows(const ModelSpec& model, Json& config) {
  if (!IsTokenRowsAlone(model.peft)) {
    if (model.peft.trainable_token_indices.empty()) return;
    config[kOfLora] = model.peft.trainable_token_indices;
    return;
  }
  config["peft_type"] = "TRAINABLE_TOKENS";
  config[kAlone] = model.peft.trainable_token_indices;
  config["target_modules"] = TokenLayer(model);
  config["init_weights"] = true;
}

}  // namespace weft
