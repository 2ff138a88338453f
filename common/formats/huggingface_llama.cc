#include <string_view>

#include "common/formats/huggingface_config.h"
#include "common/model/model_sizes.h"

namespace weft {
namespace {

constexpr RequiredSwitch kSwitches[] = {
    {"attention_bias", false, "a bias on the attention's output projection"},
    {"mlp_bias", false, "biases in the MLP"},
};

// What transformers assumes where the file says nothing.
constexpr int64_t kMistralWindow = 4096;
constexpr int64_t kDefaultOriginalContext = 8192;

const Json* Find(const Json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Status ReadScalingSize(const Json& rope, const char* key, int64_t& out) {
  return Find(rope, key) == nullptr ? OkStatus() : ReadSize(rope, key, out);
}

/// `rope`: rope_parameters of transformers 5, or rope_scaling of 4.
Status ReadRope(const Json& rope, ModelSpec& model) {
  if (!rope.is_object()) {
    return InvalidError("the rotary embedding in config.json must be an object, not " +
                        rope.dump());
  }
  const Json* type = Find(rope, "rope_type");
  if (type == nullptr) type = Find(rope, "type");
  const std::string kind = type == nullptr ? "\"default\"" : type->dump();
  RopeScalingSpec& scaling = model.rope_scaling;
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "rope_theta", model.rope_theta));
  double rotated = 1;
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "partial_rotary_factor", rotated));
  if (rotated != 1) {
    return InvalidError("partial_rotary_factor in config.json is " + std::to_string(rotated) +
                        ": heads that are turned in part are not supported");
  }
  if (kind == "\"default\"") return OkStatus();
  if (kind != "\"linear\"" && kind != "\"llama3\"") {
    return InvalidError("rope_type in config.json is " + kind +
                        "; \"default\", \"linear\" and \"llama3\" are computed");
  }
  scaling.kind = kind.substr(1, kind.size() - 2);
  scaling.original_context = kDefaultOriginalContext;
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "factor", scaling.factor));
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "low_freq_factor", scaling.low_frequency_factor));
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "high_freq_factor", scaling.high_frequency_factor));
  WEFT_RETURN_IF_ERROR(
      ReadScalingSize(rope, "original_max_position_embeddings", scaling.original_context));
  if (scaling.kind == "llama3" && scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return InvalidError("high_freq_factor in config.json must be more than low_freq_factor");
  }
  return OkStatus();
}

/// Whether all layers attend through the window. kInvalid when only some do.
Result<bool> AllLayersHaveWindow(const Json& config, const ModelSpec& model, bool qwen) {
  constexpr std::string_view kSome = "a window in some layers and not in others is not supported";
  if (const Json* types = Find(config, "layer_types")) {
    if (!types->is_array() || types->empty()) {
      return InvalidError("layer_types in config.json must list a type for each layer");
    }
    for (const Json& type : *types) {
      if (type != types->front()) {
        return InvalidError("layer_types in config.json: " + std::string(kSome));
      }
    }
    if (types->front() != "full_attention" && types->front() != "sliding_attention") {
      return InvalidError("layer_types in config.json hold " + types->front().dump() +
                          "; \"full_attention\" and \"sliding_attention\" are computed");
    }
    return types->front() == "sliding_attention";
  }
  if (!qwen) return true;
  bool used = false;
  WEFT_RETURN_IF_ERROR(ReadSwitch(config, "use_sliding_window", used));
  if (!used) return false;
  int64_t without = model.layers;
  WEFT_RETURN_IF_ERROR(ReadScalingSize(config, "max_window_layers", without));
  if (without > 0 && without < model.layers) {
    return InvalidError("max_window_layers in config.json is " + std::to_string(without) + ": " +
                        std::string(kSome));
  }
  return without == 0;
}

Status ReadWindow(const Json& config, std::string_view type, ModelSpec& model) {
  model.sliding_window = 0;
  if (type == "llama") return OkStatus();
  const bool qwen = type == "qwen2";
  int64_t window =
      qwen || type == "mixtral" || config.contains("sliding_window") ? 0 : kMistralWindow;
  WEFT_RETURN_IF_ERROR(ReadScalingSize(config, "sliding_window", window));
  WEFT_ASSIGN_OR_RETURN(bool used, AllLayersHaveWindow(config, model, qwen));
  if (used && window < model.context) model.sliding_window = window;
  return OkStatus();
}

/// Of a mixtral.
Status ReadExperts(const Json& config, ModelSpec& model) {
  double jitter = 0;
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_local_experts", model.experts));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_experts_per_tok", model.experts_per_token));
  WEFT_RETURN_IF_ERROR(ReadNumber(config, "router_jitter_noise", jitter));
  if (jitter != 0) {
    return InvalidError("router_jitter_noise in config.json is " + std::to_string(jitter) +
                        ": noise on what routers read is not supported");
  }
  if (model.experts < 1 || model.experts_per_token < 1 || model.experts_per_token > model.experts) {
    return InvalidError("num_experts_per_tok in config.json is " +
                        std::to_string(model.experts_per_token) + " of num_local_experts " +
                        std::to_string(model.experts));
  }
  return OkStatus();
}

Json RopeConfig(const ModelSpec& model) {
  const RopeScalingSpec& scaling = model.rope_scaling;
  Json rope = {{"rope_type", scaling.kind == "none" ? "default" : scaling.kind}};
  if (scaling.kind != "none") rope["factor"] = scaling.factor;
  if (scaling.kind == "llama3") {
    rope["low_freq_factor"] = scaling.low_frequency_factor;
    rope["high_freq_factor"] = scaling.high_frequency_factor;
    rope["original_max_position_embeddings"] = scaling.original_context;
  }
  return rope;
}

}  // namespace

Result<ModelSpec> LlamaFromConfig(const Json& config, const ModelSpec& base) {
  if (const Json* act = Find(config, "hidden_act"); act != nullptr && *act != "silu") {
    return InvalidError("hidden_act in config.json is " + act->dump() +
                        "; only \"silu\" is computed");
  }
  for (const RequiredSwitch& item : kSwitches) WEFT_RETURN_IF_ERROR(CheckSwitch(config, item));
  const std::string type = config["model_type"];
  ModelSpec model = base;
  model.family = "llama";
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_hidden_layers", model.layers));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "hidden_size", model.width));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "intermediate_size", model.mlp_width));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_attention_heads", model.heads));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "max_position_embeddings", model.context));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "vocab_size", model.vocab_size));
  model.kv_heads = 0;
  if (Find(config, "num_key_value_heads") != nullptr || type != "llama") {
    WEFT_RETURN_IF_ERROR(ReadSize(config, "num_key_value_heads", model.kv_heads));
  }
  if (model.heads < 1 || model.mlp_width < 1) {
    return InvalidError("num_attention_heads " + std::to_string(model.heads) +
                        " and intermediate_size " + std::to_string(model.mlp_width) +
                        " in config.json must be positive");
  }
  int64_t head_width = HeadWidth(model);
  if (Find(config, "head_dim") != nullptr) {
    WEFT_RETURN_IF_ERROR(ReadSize(config, "head_dim", head_width));
  }
  if (head_width * model.heads != model.width) {
    return InvalidError("head_dim in config.json is " + std::to_string(head_width) +
                        "; only hidden_size / num_attention_heads is supported");
  }
  const bool mixtral = type == "mixtral";
  model.norm_epsilon = mixtral ? 1e-5 : 1e-6;
  WEFT_RETURN_IF_ERROR(ReadNumber(config, "rms_norm_eps", model.norm_epsilon));
  model.qkv_bias = type == "qwen2";
  model.experts = 0;
  if (mixtral) WEFT_RETURN_IF_ERROR(ReadExperts(config, model));
  bool tied = false;
  WEFT_RETURN_IF_ERROR(ReadSwitch(config, "tie_word_embeddings", tied));
  model.untied_classifier = !tied;
  model.rope_theta = mixtral ? 1e6 : 10000;
  model.rope_scaling = {};
  WEFT_RETURN_IF_ERROR(ReadNumber(config, "rope_theta", model.rope_theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const Json* rope = Find(config, key)) WEFT_RETURN_IF_ERROR(ReadRope(*rope, model));
  }
  WEFT_RETURN_IF_ERROR(ReadWindow(config, type, model));
  return model;
}

Result<Json> LlamaToConfig(const ModelSpec& model) {
  const bool window = model.sliding_window > 0, experts = model.experts > 0;
  if (experts && model.qkv_bias) {
    return InvalidError(
        "model.qkv_bias cannot be combined with model.experts in an export for transformers, which "
        "has no such model");
  }
  if (experts && !model.normalize_expert_weights) {
    return InvalidError(
        "model.normalize_expert_weights false cannot be combined with an export for transformers, "
        "whose mixtral divides by the sum of the weights");
  }
  const char* type = experts ? "mixtral" : model.qkv_bias ? "qwen2" : window ? "mistral" : "llama";
  const char* architecture = experts          ? "MixtralForCausalLM"
                             : model.qkv_bias ? "Qwen2ForCausalLM"
                             : window         ? "MistralForCausalLM"
                                              : "LlamaForCausalLM";
  Json config;
  config["architectures"] = {architecture};
  config["model_type"] = type;
  config["hidden_act"] = "silu";
  config["num_hidden_layers"] = model.layers;
  config["hidden_size"] = model.width;
  config["intermediate_size"] = MlpWidth(model);
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = KvHeads(model);
  config["head_dim"] = HeadWidth(model);
  config["max_position_embeddings"] = model.context;
  config["rms_norm_eps"] = model.norm_epsilon;
  config["attention_dropout"] = AttentionDropoutOf(model);
  const Json rope = RopeConfig(model);
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = model.rope_scaling.kind == "none" ? Json(nullptr) : rope;
  config["rope_parameters"] = rope;
  config["rope_parameters"]["rope_theta"] = model.rope_theta;
  if (experts) {
    config["num_local_experts"] = model.experts;
    config["num_experts_per_tok"] = model.experts_per_token;
    config["router_aux_loss_coef"] = RouterAuxLossOf(model);
    config["sliding_window"] = window ? Json(model.sliding_window) : Json(nullptr);
  } else if (model.qkv_bias) {
    config["use_sliding_window"] = window;
    config["sliding_window"] = window ? Json(model.sliding_window) : Json(nullptr);
    config["max_window_layers"] = window ? 0 : model.layers;
  } else if (window) {
    config["sliding_window"] = model.sliding_window;
  } else {
    config["attention_bias"] = false;
    config["mlp_bias"] = false;
  }
  return config;
}

}  // namespace weft
