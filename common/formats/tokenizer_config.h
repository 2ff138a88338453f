#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/formats/added_tokens.h"
#include "common/formats/tokenizer_json.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

struct PrefixSwitches;

/// What the files next to a tokenizer say of it: tokenizer_config.json, special_tokens_map.json,
/// added_tokens.json, chat_template.jinja, generation_config.json, and the class, the model_type
/// and the token ids of config.json. Absent files say nothing; nothing here is guessed.
struct TokenizerConfig {
  std::string tokenizer_class;  ///< "Qwen2Tokenizer"; "" when no file says.
  std::string class_file;       ///< The file that said so: tokenizer_config.json or config.json.
  std::string model_type;       ///< Of config.json; "" when it does not say.

  /// Spellings of the tokens with a role, by key of tokenizer_config.json: "bos_token",
  /// "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token".
  std::map<std::string, std::string> roles;
  std::map<std::string, std::string> role_files;  ///< The file that said so, by the same key.

  /// Ids by key of config.json and generation_config.json: "bos_token_id", "eos_token_id" (one or
  /// more), "pad_token_id".
  struct Ids {
    std::string file;
    std::map<std::string, std::vector<int32_t>> ids;
  };
  std::vector<Ids> model_ids;  ///< generation_config.json first.

  std::vector<AddedToken> added;  ///< added_tokens_decoder and added_tokens.json; ids ascending.
  /// additional_special_tokens, and extra_special_tokens where it is a list.
  std::vector<std::string> more_special_tokens;

  // Switches of tokenizer_config.json that change ids; nothing where it does not say.
  std::optional<bool> add_bos_token, add_eos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> legacy;  ///< Of SentencePiece models: see PrefixSwitches.
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars;

  // Carried over into exports as they are.
  std::string chat_template;  ///< Jinja; "" when there is none.
  std::optional<std::vector<std::string>> model_input_names;
  Json tokenizer_config = Json::object();   ///< All of tokenizer_config.json.
  Json generation_config = Json::object();  ///< All of generation_config.json.
};

/// Reads these files of a folder. kInvalid names the file and what is malformed in it, and both
/// files where two disagree.
Result<TokenizerConfig> ReadTokenizerConfig(Env& env, const std::string& folder);

/// What `config` says of the space before a text, for ParseSentencePiece.
PrefixSwitches PrefixSwitchesOf(const TokenizerConfig& config);

/// The tokenizer_class without the endings that say how it is implemented: "Qwen2".
std::string BaseClass(const TokenizerConfig& config);

/// The error of a class that the files at hand do not serve, for the reason `why`.
Status ClassError(const TokenizerConfig& config, const std::string& why);

/// Whether added_tokens_decoder or added_tokens.json has this special token.
bool HasSpecialToken(const TokenizerConfig& config, std::string_view spelling);

/// tokenizer_config.json and generation_config.json that say the same alone; "" for one that would
/// say nothing.
std::string TokenizerConfigJson(const TokenizerConfig& config);
std::string GenerationConfigJson(const TokenizerConfig& config);

/// Adds to the definition the tokens that only the config has, as special ones those with a role.
/// True when there were some. kInvalid names both files where the config says of a token, or of how
/// text is normalized, another thing than `file`, and the file that gives a role to a token that
/// does not exist.
Result<bool> AddFromConfig(const TokenizerConfig& config, const std::string& file,
                           TokenizerDefinition& definition);

}  // namespace weft
