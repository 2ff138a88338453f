#include "worker/engine/models/gpt2.h"

#include "common/model/model_sizes.h"
#include "worker/engine/nn/initialization.h"

namespace weft::engine {
namespace {

TransformerBlockOptions Block(const ModelSpec& spec, int64_t index) {
  const std::string name = "transformer.h." + std::to_string(index);
  return {.norm_position = NormPositionNamed(NormPositionOf(spec)),
          .branch_scaling = BranchScalingOf(spec),
          .attention_norm = {name + ".ln_1", spec.width, spec.norm_epsilon},
          .attention = {.qkv = {name + ".attn.c_attn"},
                        .output = name + ".attn.c_proj",
                        .width = spec.width,
                        .heads = spec.heads,
                        .kv_heads = KvHeads(spec),
                        .head_dim = HeadWidth(spec),
                        .logit_scale = AttentionLogitScale(spec),
                        .dropout = AttentionDropoutOf(spec),
                        .dropout_site = name + ".attn.attn_dropout"},
          .mlp_norm = {name + ".ln_2", spec.width, spec.norm_epsilon},
          .mlp = {.activation = spec.activation == "squared_relu" ? MlpActivation::kSquaredRelu
                                                                  : MlpActivation::kGelu,
                  .up = {name + ".mlp.c_fc"},
                  .down = name + ".mlp.c_proj",
                  .width = spec.width,
                  .inner = MlpWidth(spec)},
          .dropout = DropoutOf(spec),
          .attention_dropout = name + ".attn.resid_dropout",
          .mlp_dropout = name + ".mlp.dropout"};
}

}  // namespace

DecoderOptions Gpt2(const ModelSpec& spec) {
  return {.token_embedding = "transformer.wte.weight",
          .position_embedding = "transformer.wpe.weight",
          .embedding_dropout = "transformer.drop",
          .classifier = "lm_head.weight",
          .final_norm = {"transformer.ln_f", spec.width, spec.norm_epsilon},
          .block = [spec](int64_t index) { return Block(spec, index); }};
}

}  // namespace weft::engine
