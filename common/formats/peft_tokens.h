#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// What folders of Hugging Face's peft library have of the table of tokens: factors besides it (LORA
// with the embedding among its targets), and trained rows of it (TRAINABLE_TOKENS, or
// trainable_token_indices of a LORA).

/// Ends of names of tensors, in the engine and in files.
inline constexpr std::string_view kTableFactorA = ".lora_embedding_A";  ///< In files transposed.
inline constexpr std::string_view kTableFactorB = ".lora_embedding_B";
inline constexpr std::string_view kTokenRows = ".trainable_tokens_delta";
/// What peft puts before the last one besides other adapters.
inline constexpr std::string_view kTokenWrapper = ".token_adapter";

/// The layer of the token embedding; "": the network has none.
std::string TokenLayer(const ModelSpec& model);

/// Whether `model.peft` has factors besides the table.
bool AdaptsTokenLayer(const ModelSpec& model);

/// Whether `model.peft` trains rows of the table and nothing else.
bool IsTokenRowsAlone(const PeftSpec& spec);

/// The layer of a classifier that has the table, too; "": none does.
std::string TiedLayer(const ModelSpec& model);

/// trainable_token_indices of a LORA, token_indices of TRAINABLE_TOKENS. kInvalid where they are
/// those of another layer.
Status ReadTokenRows(const Json& config, const ModelSpec& model, PeftSpec& spec);

/// kInvalid where the table is trained whole and the classifier has it, too: peft would untie them.
Status CheckTableStaysTied(const ModelSpec& model);

/// Writes what ReadTokenRows reads.
void AddTokenRows(const ModelSpec& model, Json& config);

}  // namespace weft
