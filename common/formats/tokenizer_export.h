#pragma once

#include <map>
#include <string>

#include "common/formats/tokenizer.h"
#include "common/formats/usage_files.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// What an export says of its tokenizer, for transformers 4 and 5.
struct TokenizerExport {
  std::map<std::string, std::string> files;  ///< Content by name: "tokenizer.json", ...
  /// For config.json and generation_config.json: a token's id, a list of ids, or null.
  Json bos_token_id, eos_token_id, pad_token_id;
};

/// Describes how `tokenizer` feeds `model`: tokenizer.json (of a SentencePiece model, too, with
/// tokenizer.model next to it), tokenizer_config.json, special_tokens_map.json and the chat
/// template. `AutoTokenizer.from_pretrained(folder)(text)` then gives the ids that the engine
/// gives, and the inputs that the model's forward pass takes. Roles of special tokens, tokens that
/// the vocabulary lacks, chat template and sides of padding and truncation are those of
/// tokenizer.config() where it says something; ids of tokens with a role, those of `imported`.
/// kInvalid when the tokenizer's file cannot be described so.
Result<TokenizerExport> DescribeTokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                          const UsageFiles& imported);

}  // namespace weft
