#pragma once

#include <string>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Adapters of the table of tokens.

/// The weight of the token embedding; "": the network has none.
std::string TokenTable(const ModelSpec& model);

/// Whether lora has factors besides it.
bool AdaptsTokenTable(const ModelSpec& model);

/// Whether model.peft has tensors for it.
inline bool HasTokenAdapter(const ModelSpec& model) {
  return AdaptsTokenTable(model) || !model.peft.trainable_token_indices.empty();
}

/// Those tensors:
///   lora "<layer>.lora_embedding_A" [vocabulary, rank], which files have transposed, and
///        "<layer>.lora_embedding_B" [width, rank]
///   trainable_token_indices "<layer>.trainable_tokens_delta" [tokens, width]
std::vector<ParameterInfo> TokenAdapterTensors(const ModelSpec& model);

/// Whether weights of the network can do the same: not where a classifier has the table, too, and
/// no adapter.
bool MergesTokenAdapter(const ModelSpec& model);

/// kInvalid where settings about the table do not fit.
Status CheckTokenAdapters(const ModelSpec& model);

}  // namespace weft
