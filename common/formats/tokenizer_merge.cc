// AddFromConfig: what the files next to a tokenizer add to it, and where they disagree with it.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/formats/tokenizer_config.h"

namespace weft {
namespace {

constexpr const char* kConfigFile = "tokenizer_config.json";

std::string Describe(const AddedToken& token) {
  return "{id " + std::to_string(token.id) + ", special " + (token.special ? "true" : "false") +
         ", normalized " + (token.normalized ? "true" : "false") + ", lstrip " +
         (token.lstrip ? "true" : "false") + ", rstrip " + (token.rstrip ? "true" : "false") +
         ", single_word " + (token.single_word ? "true" : "false") + "}";
}

Status Disagree(const std::string& file, const char* key, bool config_says, bool file_says) {
  return InvalidError(std::string(kConfigFile) + " has " + key + " " +
                      (config_says ? "true" : "false") + ", but " + file + " says " +
                      (file_says ? "true" : "false") + ". hint: make them say the same");
}

/// The switches that transformers would change the tokenizer by.
Status CheckSwitches(const TokenizerConfig& config, const std::string& file,
                     const TokenizerDefinition& definition) {
  auto check = [&](const char* key, std::optional<bool> wanted, bool is) {
    return wanted && *wanted != is ? Disagree(file, key, *wanted, is) : OkStatus();
  };
  for (const NormalizerStep& step : definition.normalizer) {
    const auto* bert = std::get_if<BertNormalizer>(&step);
    if (bert == nullptr) continue;
    WEFT_RETURN_IF_ERROR(check("do_lower_case", config.do_lower_case, bert->lowercase));
    WEFT_RETURN_IF_ERROR(check("strip_accents", config.strip_accents, bert->strip_accents));
    WEFT_RETURN_IF_ERROR(
        check("tokenize_chinese_chars", config.tokenize_chinese_chars, bert->handle_chinese_chars));
  }
  if (definition.kind == TokenizerKind::kBpe && definition.byte_level) {
    const bool prefix =
        std::any_of(definition.splits.begin(), definition.splits.end(),
                    [](const WordSplit& s) { return s.kind == WordSplit::Kind::kPrefixSpace; });
    return check("add_prefix_space", config.add_prefix_space, prefix);
  }
  return OkStatus();
}

}  // namespace

Result<bool> AddFromConfig(const TokenizerConfig& config, const std::string& file,
                           TokenizerDefinition& definition) {
  WEFT_RETURN_IF_ERROR(CheckSwitches(config, file, definition));
  std::unordered_map<std::string, int32_t> vocabulary;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      vocabulary.emplace(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  std::unordered_map<std::string, AddedToken> added;
  std::unordered_map<int32_t, std::string> spellings;
  for (const AddedToken& token : definition.added) {
    added.emplace(token.content, token);
    spellings.emplace(token.id, token.content);
  }
  bool changed = false;
  auto add = [&](const AddedToken& token) {
    definition.added.push_back(token);
    added.emplace(token.content, token);
    spellings.emplace(token.id, token.content);
    changed = true;
  };
  for (const AddedToken& token : config.added) {
    if (const auto known = added.find(token.content); known != added.end()) {
      if (known->second != token) {
        return InvalidError(std::string(kConfigFile) + " says of the added token " +
                            Quoted(token.content) + " " + Describe(token) + ", but " + file + " " +
                            Describe(known->second) + ". hint: make them say the same");
      }
      continue;
    }
    const auto id = static_cast<size_t>(token.id);
    std::string holder;
    if (const auto it = spellings.find(token.id); it != spellings.end()) holder = it->second;
    if (id < definition.tokens.size() && !definition.tokens[id].empty() &&
        definition.tokens[id] != token.content) {
      holder = definition.tokens[id];
    }
    const auto in_model = vocabulary.find(token.content);
    if (!holder.empty() || (in_model != vocabulary.end() && in_model->second != token.id)) {
      const std::string other = holder.empty() ? token.content : holder;
      const int32_t other_id = holder.empty() ? in_model->second : token.id;
      return InvalidError(std::string(kConfigFile) + " gives the added token " +
                          Quoted(token.content) + " the id " + std::to_string(token.id) + ", but " +
                          file + " gives " + Quoted(other) + " the id " + std::to_string(other_id));
    }
    add(token);
  }
  for (const auto& [role, spelling] : config.roles) {
    if (added.contains(spelling)) continue;
    const auto it = vocabulary.find(spelling);
    if (it == vocabulary.end()) {
      return InvalidError(config.role_files.at(role) + " has the " + role + " " + Quoted(spelling) +
                          ", which is not in the vocabulary of " + file +
                          ". hint: give it an id in added_tokens.json, or take it out");
    }
    add({.id = it->second, .content = spelling, .special = true});
  }
  return changed;
}

}  // namespace weft
