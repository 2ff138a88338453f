#include "worker/engine/models/llama.h"

#include "common/model/model_sizes.h"
#include "worker/engine/nn/initialization.h"

namespace weft::engine {
namespace {

NormOptions RmsNorm(const ModelSpec& spec, const std::string& name) {
  return {name, spec.width, spec.norm_epsilon, NormKind::kRms};
}

std::optional<MixtureOfExpertsOptions> Experts(const ModelSpec& spec, const std::string& block) {
  if (spec.experts == 0) return std::nullopt;
  return MixtureOfExpertsOptions{
      .name = block + ".block_sparse_moe",
      .width = spec.width,
      .inner = MlpWidth(spec),
      .experts = spec.experts,
      .per_token = spec.experts_per_token,
      .capacity = spec.expert_capacity,
      .balance = RouterAuxLossOf(spec) / static_cast<double>(spec.layers),
      .normalize = spec.normalize_expert_weights};
}

TransformerBlockOptions Block(const ModelSpec& spec, std::shared_ptr<const RotaryTable> rotary,
                              int64_t index) {
  const std::string name = "model.layers." + std::to_string(index);
  const std::string attention = name + ".self_attn.";
  const std::string mlp = name + ".mlp.";
  return {.norm_position = NormPositionNamed(NormPositionOf(spec)),
          .branch_scaling = BranchScalingOf(spec),
          .attention_norm = RmsNorm(spec, name + ".input_layernorm"),
          .attention = {.qkv = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                        .output = attention + "o_proj",
                        .width = spec.width,
                        .heads = spec.heads,
                        .kv_heads = KvHeads(spec),
                        .head_dim = HeadWidth(spec),
                        .window = spec.sliding_window,
                        .rotary = std::move(rotary),
                        .qkv_bias = spec.qkv_bias,
                        .output_bias = false,
                        .logit_scale = AttentionLogitScale(spec),
                        .dropout = AttentionDropoutOf(spec),
                        .dropout_site = attention + "attention_dropout"},
          .mlp_norm = RmsNorm(spec, name + ".post_attention_layernorm"),
          .mlp = {.activation = MlpActivation::kSwiGlu,
                  .up = {mlp + "gate_proj", mlp + "up_proj"},
                  .down = mlp + "down_proj",
                  .width = spec.width,
                  .inner = MlpWidth(spec),
                  .bias = false},
          .experts = Experts(spec, name),
          .dropout = DropoutOf(spec),
          .attention_dropout = attention + "dropout",
          .mlp_dropout = mlp + "dropout"};
}

}  // namespace

DecoderOptions Llama(const ModelSpec& spec) {
  auto rotary = std::make_shared<RotaryTable>(
      spec.context, RotaryFrequencies(HeadWidth(spec), spec.rope_theta, spec.rope_scaling));
  return {.token_embedding = "model.embed_tokens.weight",
          .embedding_dropout = "model.dropout",
          .classifier = "lm_head.weight",
          .final_norm = RmsNorm(spec, "model.norm"),
          .rotary = rotary,
          .block = [spec, rotary](int64_t index) { return Block(spec, rotary, index); }};
}

}  // namespace weft::engine
