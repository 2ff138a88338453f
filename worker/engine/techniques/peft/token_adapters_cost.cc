#include "worker/engine/techniques/peft/token_adapters_cost.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "common/full_match.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft {

std::string TokenTable(const ModelSpec& model) {
  for (const ParameterInfo& parameter : PlainEmbeddingParameters(model)) {
    if (parameter.role == ParameterRole::kTokenEmbedding) return parameter.name;
  }
  return "";
}

bool AdaptsTokenTable(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  if (spec.method != "lora") return false;
  const std::string table = TokenTable(model);
  if (table.empty() || IsSavedWhole(model, table)) return false;
  const std::string layer = LayerOf(table);
  if (!spec.target_regex.empty()) {
    const Result<bool> fits = FullMatch(spec.target_regex, layer);
    return spec.layers_to_transform.empty() && fits.ok() && *fits;
  }
  return std::any_of(spec.target_modules.begin(), spec.target_modules.end(),
                     [&](const std::string& target) { return IsTokenLayer(layer, target); });
}

std::vector<ParameterInfo> TokenAdapterTensors(const ModelSpec& model) {
  std::vector<ParameterInfo> tensors;
  if (!HasTokenAdapter(model)) return tensors;
  const std::string table = TokenTable(model);
  const int64_t width = EmbeddingWidth(model), rank = RankOf(model.peft, table);
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) -> ParameterInfo& {
    ParameterInfo& info = tensors.emplace_back();
    info.name = LayerOf(table) + "." + name;
    info.shape = {rows, columns};
    info.role = ParameterRole::kEmbeddingProjection;
    info.adapter = AdapterSide::kNeither;
    info.of_whole_weight = true;
    if (MergesTokenAdapter(model)) info.adapter_of = table;
    return info;
  };
  const auto look_up = [](ParameterInfo& info) {
    info.role = ParameterRole::kPositionEmbedding;
    info.read_directly = info.of_virtual_tokens = true;
  };
  if (!AdaptsTokenTable(model)) {
    ParameterInfo& rows =
        add("trainable_tokens_delta", std::ssize(model.peft.trainable_token_indices), width);
    look_up(rows);
    rows.of_table = true;
    return tensors;
  }
  ParameterInfo& a = add("lora_embedding_A", model.vocab_size, rank);
  look_up(a);
  a.read_backward = true;  // what B reads is not kept
  add("lora_embedding_B", width, rank);
  return tensors;
}

bool MergesTokenAdapter(const ModelSpec& model) {
  const bool tied = !model.untied_classifier && HeadOf(model) != "classification";
  return !tied || !AdaptsTokenTable(model);
}

Status CheckTokenAdapters(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  const std::vector<int64_t>& tokens = spec.trainable_token_indices;
  const std::string table = TokenTable(model);
  if (AdaptsTokenTable(model)) {
    const auto refused = [&](const char* setting, const char* hint) {
      return InvalidError("model.peft.target_modules names the token embedding " + LayerOf(table) +
                          " with " + setting + "; hint: " + hint);
    };
    if (spec.use_dora) {
      return refused("use_dora, which works on linear layers alone", "use_dora false");
    }
    if (!spec.layers_to_transform.empty()) {
      return refused("layers_to_transform, and it is of no block", "leave layers_to_transform out");
    }
    if (!tokens.empty()) {
      return refused("trainable_token_indices, which are rows of it", "one of the two");
    }
  }
  if (tokens.empty()) return OkStatus();
  if (spec.method != "lora" && spec.method != "selective") {
    return InvalidError("model.peft.trainable_token_indices with method " + spec.method +
                        "; hint: model.peft.method lora or selective");
  }
  if (table.empty()) {
    return InvalidError("model.peft.trainable_token_indices with model.family " + model.family +
                        ", which has no tokens; hint: leave it out");
  }
  if (IsSavedWhole(model, table)) {
    return InvalidError("model.peft.trainable_token_indices are rows of " + LayerOf(table) +
                        ", which modules_to_save trains whole; hint: one of the two");
  }
  std::set<int64_t> seen;
  for (const int64_t token : tokens) {
    const bool known = model.vocab_size > 0;  // otherwise it is that of a tokenizer
    if (token < 0 || (known && token >= model.vocab_size)) {
      return InvalidError("model.peft.trainable_token_indices has " + std::to_string(token) +
                          ", which is no token" +
                          (known ? " from 0 to " + std::to_string(model.vocab_size - 1) : "") +
                          "; hint: a row of the token embedding");
    }
    if (!seen.insert(token).second) {
      return InvalidError("model.peft.trainable_token_indices has " + std::to_string(token) +
                          " twice; hint: each token once");
    }
  }
  return OkStatus();
}

}  // namespace weft
