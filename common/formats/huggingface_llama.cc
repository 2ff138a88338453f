#include <string_view>
#include <utility>

#include "common/formats/huggingface_config.h"
#include "common/model/model_sizes.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

constexpr RequiredSwitch kSwitches[] = {
    {"attention_bias", false, "a bias on the attention's output projection"},
    {"mlp_bias", false, "biases in the MLP"},
};

// What transformers assumes where the file says nothing.
constexpr int64_t kDefaultWindow = 4096;         // of mistral and qwen2
constexpr int64_t kDefaultMaxWindowLayers = 28;  // of qwen2

Status Disagree(const std::string& one, const std::string& other) {
  return InvalidError("config.json has " + one + " and " + other +
                      ", which must be the same; hint: delete the wrong one");
}

/// The context that llama3 scaling stretches: transformers 5 takes the key outside, then the one
/// inside, then the context; 4 demands the one inside.
Status ReadOriginalContext(const Json& config, const Json& rope, ModelSpec& model) {
  constexpr char kKey[] = "original_max_position_embeddings";
  int64_t& original = model.rope_scaling.original_context;
  original = model.context;
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(rope, kKey, original));
  const int64_t inside = original;
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, kKey, original));
  if (Find(rope, kKey) == nullptr || inside == original) return OkStatus();
  return Disagree(std::string(kKey) + " " + std::to_string(original),
                  std::to_string(inside) + " for it in the rotary embedding");
}

/// kInvalid names the key that is missing.
Status ReadRequiredNumber(const Json& rope, const char* key, double& out) {
  if (Find(rope, key) != nullptr) return ReadNumber(rope, key, out);
  return InvalidError("the rotary embedding in config.json has no " + std::string(key));
}

Status CheckRotatedPart(const Json& object) {
  double rotated = 1;
  WEFT_RETURN_IF_ERROR(ReadNumber(object, "partial_rotary_factor", rotated));
  if (rotated == 1) return OkStatus();
  return InvalidError("partial_rotary_factor in config.json is " + std::to_string(rotated) +
                      ": heads that are turned in part are not supported");
}

/// `rope`: rope_parameters of transformers 5, or rope_scaling of 4.
Status ReadRope(const Json& config, const Json& rope, ModelSpec& model) {
  if (!rope.is_object()) {
    return InvalidError("the rotary embedding in config.json must be an object, not " +
                        rope.dump());
  }
  const Json* type = Find(rope, "rope_type");
  if (type == nullptr) type = Find(rope, "type");
  const std::string kind = type == nullptr ? "\"default\"" : type->dump();
  RopeScalingSpec& scaling = model.rope_scaling;
  scaling = {};
  const double outside = model.rope_theta;
  WEFT_RETURN_IF_ERROR(ReadNumber(rope, "rope_theta", model.rope_theta));
  if (Find(config, "rope_theta") != nullptr && outside != model.rope_theta) {
    return Disagree("rope_theta " + Json(outside).dump(),
                    Json(model.rope_theta).dump() + " for it in the rotary embedding");
  }
  WEFT_RETURN_IF_ERROR(CheckRotatedPart(rope));
  if (kind == "\"default\"") return OkStatus();
  if (kind != "\"linear\"" && kind != "\"llama3\"") {
    return InvalidError("rope_type in config.json is " + kind +
                        "; \"default\", \"linear\" and \"llama3\" are computed");
  }
  scaling.kind = kind.substr(1, kind.size() - 2);
  WEFT_RETURN_IF_ERROR(ReadRequiredNumber(rope, "factor", scaling.factor));
  if (scaling.kind == "linear") return OkStatus();
  WEFT_RETURN_IF_ERROR(ReadRequiredNumber(rope, "low_freq_factor", scaling.low_frequency_factor));
  WEFT_RETURN_IF_ERROR(ReadRequiredNumber(rope, "high_freq_factor", scaling.high_frequency_factor));
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return InvalidError("high_freq_factor in config.json must be more than low_freq_factor");
  }
  return ReadOriginalContext(config, rope, model);
}

Status ReadRotaryEmbedding(const Json& config, double default_theta, ModelSpec& model) {
  model.rope_theta = default_theta;
  model.rope_scaling = {};
  WEFT_RETURN_IF_ERROR(ReadNumber(config, "rope_theta", model.rope_theta));
  WEFT_RETURN_IF_ERROR(CheckRotatedPart(config));
  const auto given = [&](const char* key) {
    const Json* rope = Find(config, key);
    return rope == nullptr || rope->empty() ? nullptr : rope;
  };
  const Json* scaling = given("rope_scaling");
  const Json* parameters = given("rope_parameters");
  ModelSpec other = model;
  if (parameters != nullptr) WEFT_RETURN_IF_ERROR(ReadRope(config, *parameters, model));
  if (scaling == nullptr) return OkStatus();
  WEFT_RETURN_IF_ERROR(ReadRope(config, *scaling, other));
  const auto same = [](const ModelSpec& a, const ModelSpec& b) {
    return a.rope_theta == b.rope_theta && ToJson(a.rope_scaling) == ToJson(b.rope_scaling);
  };
  if (parameters != nullptr && !same(model, other)) {
    return Disagree("rope_scaling " + scaling->dump(), "rope_parameters " + parameters->dump());
  }
  model = std::move(other);
  return OkStatus();
}

/// Whether all layers attend through the window; of a qwen2 the file says which. kInvalid when only
/// some do.
Result<bool> AllLayersHaveWindow(const Json& config, const ModelSpec& model, bool qwen,
                                 int64_t window) {
  constexpr std::string_view kSome = "a window in some layers and not in others is not supported";
  bool used = !qwen;
  WEFT_RETURN_IF_ERROR(qwen ? ReadSwitch(config, "use_sliding_window", used) : OkStatus());
  used = used && window > 0;
  if (const Json* types = Find(config, "layer_types")) {
    if (!types->is_array() || types->empty()) {
      return InvalidError("layer_types in config.json must list a type for each layer");
    }
    for (const Json& type : *types) {
      if (type != types->front()) {
        return InvalidError("layer_types in config.json: " + std::string(kSome));
      }
    }
    const bool sliding = types->front() == "sliding_attention";
    if (!sliding && types->front() != "full_attention") {
      return InvalidError("layer_types in config.json hold " + types->front().dump() +
                          "; \"full_attention\" and \"sliding_attention\" are computed");
    }
    // For mistral and mixtral, transformers ignores layer_types.
    if (sliding != used && (sliding || !qwen)) {
      return InvalidError(
          "layer_types in config.json hold " + types->front().dump() + ", but sliding_window" +
          (qwen ? " and use_sliding_window say" : " says") + " otherwise; hint: make them agree");
    }
    return sliding;
  }
  if (!qwen || !used) return used;
  int64_t without = kDefaultMaxWindowLayers;
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, "max_window_layers", without));
  if (without > 0 && without < model.layers) {
    return InvalidError("max_window_layers in config.json is " + std::to_string(without) + ": " +
                        std::string(kSome));
  }
  return without == 0;
}

Status ReadWindow(const Json& config, std::string_view type, ModelSpec& model) {
  model.sliding_window = 0;
  if (type == "llama") return OkStatus();
  int64_t window = type == "mixtral" || config.contains("sliding_window") ? 0 : kDefaultWindow;
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, "sliding_window", window));
  if (window < 0) {
    return InvalidError("sliding_window in config.json is " + std::to_string(window) +
                        ", which must not be negative");
  }
  WEFT_ASSIGN_OR_RETURN(bool used, AllLayersHaveWindow(config, model, type == "qwen2", window));
  if (used && window < model.context) model.sliding_window = window;
  return OkStatus();
}

/// Null means as many as there are heads; a key that is missing means something else to each type.
Status ReadKeyHeads(const Json& config, std::string_view type, ModelSpec& model) {
  model.kv_heads = 0;
  if (Find(config, "num_key_value_heads") != nullptr) {
    return ReadSize(config, "num_key_value_heads", model.kv_heads);
  }
  if (config.contains("num_key_value_heads") || type == "llama") return OkStatus();
  model.kv_heads = type == "qwen2" ? 32 : 8;
  return OkStatus();
}

/// Reads the fields of a mixtral's experts.
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
  WEFT_RETURN_IF_ERROR(ReadKeyHeads(config, type, model));
  if (model.heads < 1 || model.mlp_width < 1) {
    return InvalidError("num_attention_heads " + std::to_string(model.heads) +
                        " and intermediate_size " + std::to_string(model.mlp_width) +
                        " in config.json must be positive");
  }
  model.head_width = 0;
  int64_t head_width = HeadWidth(model);
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, "head_dim", head_width));
  if (head_width * model.heads != model.width) {
    if (head_width < 8 || head_width > 256 || head_width % 8 != 0) {
      return InvalidError("head_dim in config.json is " + std::to_string(head_width) +
                          "; heads of 8 to 256 columns in steps of 8 are computed");
    }
    model.head_width = head_width;
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
  WEFT_RETURN_IF_ERROR(ReadRotaryEmbedding(config, mixtral ? 1e6 : 10000, model));
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
