#include "common/formats/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/formats/git_lfs.h"
#include "common/formats/sentencepiece_file.h"
#include "common/formats/tokenizer_components.h"

namespace weft {
namespace {

using tokenizer_json::Member;

constexpr uint64_t kMostBytes = uint64_t{64} << 20;
constexpr std::array<const char*, 7> kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
constexpr std::array<const char*, 3> kIds = {"bos_token_id", "eos_token_id", "pad_token_id"};

/// An object read from a file of the folder; an empty one when the file is absent.
Result<Json> ReadObject(Env& env, const std::string& folder, const char* name) {
  const std::string path = JoinPath(folder, name);
  if (!env.FileExists(path)) return Json::object();
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, kMostBytes));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(text, path));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(path);
  if (!json->is_object()) return InvalidError(path + " must be a JSON object");
  return json;
}

/// A token is a string, or an object with its content; null and absent give "".
Result<std::string> ReadSpelling(const Json& token) {
  if (token.is_null() || token == false) return std::string();
  const Json& content = token.is_object() ? Member(token, "content") : token;
  if (!content.is_string()) return InvalidError("a token must be a string");
  return content.get<std::string>();
}

/// Takes the class that a file names unless another did, as transformers does.
void ReadClass(const Json& json, const char* file, TokenizerConfig& config) {
  const Json& name = Member(json, "tokenizer_class");
  if (!config.tokenizer_class.empty() || !name.is_string()) return;
  config.tokenizer_class = name.get<std::string>();
  config.class_file = file;
}

/// Takes the roles that a file gives.
Status ReadRoles(const Json& json, const char* file, TokenizerConfig& config) {
  for (const char* key : kRoles) {
    Result<std::string> spelling = ReadSpelling(Member(json, key));
    if (!spelling.ok()) return spelling.status().WithContext(std::string(file) + ": " + key);
    if (spelling->empty()) continue;
    const auto [it, added] = config.roles.emplace(key, *spelling);
    if (added) config.role_files[key] = file;
    if (it->second != *spelling) {
      return InvalidError(config.role_files[key] + " has the " + key + " " + Quoted(it->second) +
                          ", but " + file + " " + Quoted(*spelling));
    }
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& more = Member(json, key);
    // The extra ones may also be an object, of tokens by a name that transformers gives them.
    if (more.is_null() || (more.is_object() && std::string_view(key).starts_with("extra")))
      continue;
    if (!more.is_array()) return InvalidError(std::string(file) + ": " + key + " must be a list");
    for (const Json& token : more) {
      Result<std::string> spelling = ReadSpelling(token);
      if (!spelling.ok()) return spelling.status().WithContext(file);
      auto& known = config.more_special_tokens;
      if (!spelling->empty() && std::find(known.begin(), known.end(), *spelling) == known.end()) {
        known.push_back(*spelling);
      }
    }
  }
  return OkStatus();
}

Status ReadSwitches(const Json& json, TokenizerConfig& config) {
  const std::array<std::pair<const char*, std::optional<bool>*>, 7> switches = {
      {{"add_bos_token", &config.add_bos_token},
       {"add_eos_token", &config.add_eos_token},
       {"add_prefix_space", &config.add_prefix_space},
       {"do_lower_case", &config.do_lower_case},
       {"legacy", &config.legacy},
       {"strip_accents", &config.strip_accents},
       {"tokenize_chinese_chars", &config.tokenize_chinese_chars}}};
  for (const auto& [key, out] : switches) {
    const Json& value = Member(json, key);
    if (value.is_null()) continue;
    if (!value.is_boolean()) {
      return InvalidError(std::string("tokenizer_config.json: ") + key + " must be true or false");
    }
    *out = value.get<bool>();
  }
  return OkStatus();
}

Status ReadCarriedOver(Env& env, const std::string& folder, TokenizerConfig& config) {
  const Json& json = config.tokenizer_config;
  const Json& names = Member(json, "model_input_names");
  if (names.is_array()) {
    config.model_input_names.emplace();
    for (const Json& name : names) {
      if (!name.is_string()) {
        return InvalidError("tokenizer_config.json: model_input_names must be strings");
      }
      config.model_input_names->push_back(name.get<std::string>());
    }
  }
  const Json& chat = Member(json, "chat_template");
  if (chat.is_string()) config.chat_template = chat.get<std::string>();
  for (const Json& named : chat.is_array() ? chat : Json::array()) {
    if (named.is_object() && Member(named, "name") == "default" &&
        Member(named, "template").is_string()) {
      config.chat_template = named["template"].get<std::string>();
    }
  }
  const std::string path = JoinPath(folder, "chat_template.jinja");
  if (!env.FileExists(path)) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(std::string chat_template, ReadFile(env, path, kMostBytes));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(chat_template, path));
  if (!config.chat_template.empty() && config.chat_template != chat_template) {
    return InvalidError("tokenizer_config.json has another chat_template than chat_template.jinja");
  }
  config.chat_template = std::move(chat_template);
  return OkStatus();
}

Status ReadAddedTokensDecoder(const Json& json, TokenizerConfig& config) {
  const Json& tokens = Member(json, "added_tokens_decoder");
  if (tokens.is_null()) return OkStatus();
  auto bad = [](const std::string& what) {
    return InvalidError("tokenizer_config.json: added_tokens_decoder " + what);
  };
  if (!tokens.is_object()) return bad("must be an object");
  for (const auto& [key, value] : tokens.items()) {
    Result<AddedToken> token = tokenizer_json::ReadAddedToken(value);
    if (!token.ok()) return bad(Quoted(key) + ": " + token.status().message());
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), token->id);
    if (error != std::errc() || stop != key.data() + key.size() || token->id < 0 ||
        token->id > kMaxTokenId) {
      return bad("has the id " + Quoted(key));
    }
    config.added.push_back(*std::move(token));
  }
  return OkStatus();
}

/// added_tokens.json: spelling to id.
Status ReadOldAddedTokens(const Json& json, TokenizerConfig& config) {
  std::unordered_map<std::string, int32_t> ids;
  std::unordered_map<int32_t, std::string> spellings;
  for (const AddedToken& token : config.added) {
    ids.emplace(token.content, token.id);
    spellings.emplace(token.id, token.content);
  }
  std::unordered_set<std::string> special(config.more_special_tokens.begin(),
                                          config.more_special_tokens.end());
  for (const auto& [role, content] : config.roles) special.insert(content);
  for (const auto& [spelling, value] : json.items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxTokenId || spelling.empty()) {
      return InvalidError("added_tokens.json: " + Quoted(spelling) + " has the id " + value.dump());
    }
    const auto id = value.get<int32_t>();
    const auto known = ids.find(spelling);
    const auto holder = spellings.find(id);
    if (known != ids.end() && known->second == id) continue;
    if (known != ids.end() || holder != spellings.end()) {
      const std::string other = known != ids.end() ? spelling : holder->second;
      return InvalidError("added_tokens.json gives " + Quoted(spelling) + " the id " +
                          std::to_string(id) + ", but tokenizer_config.json gives " +
                          Quoted(other) + " the id " + std::to_string(ids.at(other)));
    }
    config.added.push_back({.id = id, .content = spelling, .special = special.contains(spelling)});
    ids.emplace(spelling, id);
    spellings.emplace(id, spelling);
  }
  return OkStatus();
}

Result<std::vector<int32_t>> ReadIds(const Json& value) {
  std::vector<int32_t> out;
  if (value.is_null()) return out;
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_integer() || id.get<int64_t>() > kMaxTokenId) {
      return InvalidError("token ids must be whole numbers, not " + id.dump());
    }
    // Old files say "none" by -1.
    if (id.get<int64_t>() >= 0) out.push_back(id.get<int32_t>());
  }
  return out;
}

Status ReadModelIds(const Json& json, const char* file, TokenizerConfig& config) {
  TokenizerConfig::Ids all{.file = file, .ids = {}};
  for (const char* key : kIds) {
    Result<std::vector<int32_t>> ids = ReadIds(Member(json, key));
    if (!ids.ok()) return ids.status().WithContext(std::string(file) + ": " + key);
    if (!ids->empty()) all.ids[key] = *std::move(ids);
  }
  if (!all.ids.empty()) config.model_ids.push_back(std::move(all));
  return OkStatus();
}

}  // namespace

Result<TokenizerConfig> ReadTokenizerConfig(Env& env, const std::string& folder) {
  TokenizerConfig config;
  WEFT_ASSIGN_OR_RETURN(config.tokenizer_config, ReadObject(env, folder, "tokenizer_config.json"));
  WEFT_ASSIGN_OR_RETURN(Json special_map, ReadObject(env, folder, "special_tokens_map.json"));
  WEFT_ASSIGN_OR_RETURN(Json added, ReadObject(env, folder, "added_tokens.json"));
  WEFT_ASSIGN_OR_RETURN(config.generation_config,
                        ReadObject(env, folder, "generation_config.json"));
  WEFT_ASSIGN_OR_RETURN(Json model, ReadObject(env, folder, "config.json"));
  const Json& json = config.tokenizer_config;
  ReadClass(json, "tokenizer_config.json", config);
  ReadClass(model, "config.json", config);
  if (const Json& type = Member(model, "model_type"); type.is_string()) {
    config.model_type = type.get<std::string>();
  }
  WEFT_RETURN_IF_ERROR(ReadRoles(json, "tokenizer_config.json", config));
  WEFT_RETURN_IF_ERROR(ReadRoles(special_map, "special_tokens_map.json", config));
  WEFT_RETURN_IF_ERROR(ReadSwitches(json, config));
  WEFT_RETURN_IF_ERROR(ReadAddedTokensDecoder(json, config));
  WEFT_RETURN_IF_ERROR(ReadOldAddedTokens(added, config));
  std::sort(config.added.begin(), config.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  WEFT_RETURN_IF_ERROR(ReadModelIds(config.generation_config, "generation_config.json", config));
  WEFT_RETURN_IF_ERROR(ReadModelIds(model, "config.json", config));
  WEFT_RETURN_IF_ERROR(ReadCarriedOver(env, folder, config));
  return config;
}

PrefixSwitches PrefixSwitchesOf(const TokenizerConfig& config) {
  return {.legacy = config.legacy, .add_prefix_space = config.add_prefix_space};
}

std::string BaseClass(const TokenizerConfig& config) {
  std::string name = config.tokenizer_class;
  for (std::string_view ending : {"Fast", "Tokenizer"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

Status ClassError(const TokenizerConfig& config, const std::string& why) {
  return InvalidError(config.class_file + " has the tokenizer_class " +
                      Quoted(config.tokenizer_class) + ", " + why);
}

bool HasSpecialToken(const TokenizerConfig& config, std::string_view spelling) {
  return std::any_of(config.added.begin(), config.added.end(), [&](const AddedToken& token) {
    return token.special && token.content == spelling;
  });
}

std::string TokenizerConfigJson(const TokenizerConfig& config) {
  Json json = config.tokenizer_config;
  if (!config.tokenizer_class.empty() && Member(json, "tokenizer_class").is_null()) {
    json["tokenizer_class"] = config.tokenizer_class;
  }
  for (const auto& [role, spelling] : config.roles) {
    if (Member(json, role.c_str()).is_null()) json[role] = spelling;
  }
  if (!config.more_special_tokens.empty()) {
    json["additional_special_tokens"] = config.more_special_tokens;
  }
  if (!config.added.empty()) {
    Json& decoder = json["added_tokens_decoder"];
    decoder = Json::object();
    for (const AddedToken& token : config.added) {
      Json entry = tokenizer_json::AddedTokenJson(token);
      entry.erase("id");
      decoder[std::to_string(token.id)] = std::move(entry);
    }
  }
  if (!config.chat_template.empty() && Member(json, "chat_template").is_null()) {
    json["chat_template"] = config.chat_template;
  }
  return json.empty() ? "" : json.dump(2) + "\n";
}

std::string GenerationConfigJson(const TokenizerConfig& config) {
  Json json = config.generation_config;
  for (const TokenizerConfig::Ids& file : config.model_ids) {
    for (const auto& [key, ids] : file.ids) {
      if (!Member(json, key.c_str()).is_null()) continue;
      json[key] = ids.size() == 1 ? Json(ids[0]) : Json(ids);
    }
  }
  return json.empty() ? "" : json.dump(2) + "\n";
}

}  // namespace weft
