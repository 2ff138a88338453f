#include "common/formats/huggingface_config.h"

namespace weft {
namespace {

constexpr RequiredSwitch kSwitches[] = {
    {"scale_attn_weights", true, "attention without the 1/sqrt(head size) scale"},
    {"scale_attn_by_inverse_layer_idx", false, "attention scaled by the layer's number"},
    {"add_cross_attention", false, "cross attention"},
};

}  // namespace

Result<ModelSpec> Gpt2FromConfig(const Json& config, const ModelSpec& base) {
  std::string activation = "auto";
  if (auto it = config.find("activation_function"); it != config.end()) {
    if (*it == "relu2") activation = "squared_relu";
    if (*it != "relu2" && *it != "gelu_new" && *it != "gelu_pytorch_tanh") {
      return InvalidError("activation_function in config.json is " + it->dump() +
                          "; only \"gelu_new\" (tanh GELU) and \"relu2\" are computed");
    }
  }
  for (const RequiredSwitch& item : kSwitches) WEFT_RETURN_IF_ERROR(CheckSwitch(config, item));
  ModelSpec model = base;
  model.family = "gpt2";
  model.mlp_width = 0;
  model.kv_heads = 0;
  model.activation = activation;
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_layer", "num_hidden_layers", model.layers));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_embd", "hidden_size", model.width));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_head", "num_attention_heads", model.heads));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_positions", "max_position_embeddings", model.context));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "vocab_size", model.vocab_size));
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, "n_inner", model.mlp_width));
  model.norm_epsilon = 1e-5;
  WEFT_RETURN_IF_ERROR(ReadNumber(config, "layer_norm_epsilon", model.norm_epsilon));
  bool tied = true;
  WEFT_RETURN_IF_ERROR(ReadSwitch(config, "tie_word_embeddings", tied));
  model.untied_classifier = !tied;
  return model;
}

Json Gpt2ToConfig(const ModelSpec& model) {
  Json config;
  config["architectures"] = {"GPT2LMHeadModel"};
  config["model_type"] = "gpt2";
  config["activation_function"] = model.activation == "squared_relu" ? "relu2" : "gelu_new";
  config["n_layer"] = model.layers;
  config["n_embd"] = model.width;
  config["n_head"] = model.heads;
  config["n_inner"] = model.mlp_width > 0 ? Json(model.mlp_width) : Json(nullptr);
  config["n_positions"] = model.context;
  config["n_ctx"] = model.context;
  config["layer_norm_epsilon"] = model.norm_epsilon;
  config["resid_pdrop"] = DropoutOf(model);
  config["embd_pdrop"] = DropoutOf(model);
  config["attn_pdrop"] = AttentionDropoutOf(model);
  config["scale_attn_weights"] = true;
  config["scale_attn_by_inverse_layer_idx"] = false;
  config["reorder_and_upcast_attn"] = false;
  return config;
}

}  // namespace weft
