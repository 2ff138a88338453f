#include "common/model/encoder_names.h"

namespace weft {
namespace {

EncoderBlockNames VitNamesOfTransformers4(int64_t index) {
  const std::string block = "vit.encoder.layer." + std::to_string(index) + ".";
  const std::string attention = block + "attention.";
  return {.query = attention + "attention.query",
          .key = attention + "attention.key",
          .value = attention + "attention.value",
          .attention_output = attention + "output.dense",
          .attention_norm = block + "layernorm_before",
          .up = block + "intermediate.dense",
          .down = block + "output.dense",
          .mlp_norm = block + "layernorm_after"};
}

EncoderBlockNames VitNamesOfTransformers5(int64_t index) {
  const std::string block = "vit.layers." + std::to_string(index) + ".";
  const std::string attention = block + "attention.";
  return {.query = attention + "q_proj",
          .key = attention + "k_proj",
          .value = attention + "v_proj",
          .attention_output = attention + "o_proj",
          .attention_norm = block + "layernorm_before",
          .up = block + "mlp.fc1",
          .down = block + "mlp.fc2",
          .mlp_norm = block + "layernorm_after"};
}

}  // namespace

EncoderBlockNames BertBlockNamesOf(int64_t index) {
  const std::string block = "bert.encoder.layer." + std::to_string(index) + ".";
  const std::string attention = block + "attention.";
  return {.query = attention + "self.query",
          .key = attention + "self.key",
          .value = attention + "self.value",
          .attention_output = attention + "output.dense",
          .attention_norm = attention + "output.LayerNorm",
          .up = block + "intermediate.dense",
          .down = block + "output.dense",
          .mlp_norm = block + "output.LayerNorm"};
}

EncoderBlockNames VitBlockNamesOf(const ModelSpec& model, int64_t index) {
  return HasTransformers5Names(model) ? VitNamesOfTransformers5(index)
                                      : VitNamesOfTransformers4(index);
}

std::string VitNameInFile(const ModelSpec& model, int64_t index, const std::string& parameter) {
  using Names = EncoderBlockNames;
  const Names own = VitBlockNamesOf(model, index), in_file = VitNamesOfTransformers4(index);
  for (const auto layer : {&Names::query, &Names::key, &Names::value, &Names::attention_output,
                           &Names::attention_norm, &Names::up, &Names::down, &Names::mlp_norm}) {
    const std::string& begin = own.*layer;
    if (parameter.starts_with(begin + ".")) return in_file.*layer + parameter.substr(begin.size());
  }
  return parameter;
}

}  // namespace weft
