#include "common/formats/tokenizer.h"

#include <algorithm>
#include <array>

#include "common/formats/byte_alphabet.h"
#include "common/hash.h"
#include "common/json.h"

namespace weft {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

std::string Show(const std::string& text) {
  return Json(text.substr(0, 60)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

using TokenIds = std::unordered_map<std::string_view, int32_t>;

Result<std::array<int32_t, 256>> FindByteTokens(const TokenIds& ids) {
  std::array<int32_t, 256> tokens{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string name = BytesToAlphabet(std::string(1, static_cast<char>(byte)));
    auto it = ids.find(name);
    if (it == ids.end()) {
      return InvalidError("the vocabulary has no token for byte " + std::to_string(byte) + " (" +
                          Show(name) + "). hint: only byte-level BPE is supported");
    }
    tokens[static_cast<size_t>(byte)] = it->second;
  }
  return tokens;
}

Status AddMerges(const TokenizerDefinition& definition, const TokenIds& ids, BpeMerges& merges) {
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto& [left, right] = definition.merges[rank];
    const std::string merged = left + right;
    auto l = ids.find(left), r = ids.find(right), m = ids.find(merged);
    if (l == ids.end() || r == ids.end() || m == ids.end()) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Show(left) + " and " +
                          Show(right) + " names a token that is not in the vocabulary");
    }
    if (!merges.Add(l->second, r->second, m->second)) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Show(left) + " and " +
                          Show(right) + " is given twice");
    }
  }
  return OkStatus();
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(Env& env, const std::string& path) {
  const std::string json_path = JoinPath(path, "tokenizer.json");
  const std::string vocab_path = JoinPath(path, "vocab.json");
  if (!env.FileExists(json_path) && env.FileExists(vocab_path)) {
    WEFT_ASSIGN_OR_RETURN(std::string vocab, ReadFile(env, vocab_path, kMaxFileBytes));
    WEFT_ASSIGN_OR_RETURN(std::string merges,
                          ReadFile(env, JoinPath(path, "merges.txt"), kMaxFileBytes));
    Result<TokenizerDefinition> definition = ParseVocabAndMerges(vocab, merges);
    if (!definition.ok()) return definition.status().WithContext("reading the tokenizer " + path);
    Result<Tokenizer> tokenizer = Create(*definition);
    if (!tokenizer.ok()) return tokenizer.status().WithContext("reading the tokenizer " + path);
    return tokenizer;
  }
  const std::string file = env.FileExists(json_path) ? json_path : path;
  Result<std::string> text = ReadFile(env, file, kMaxFileBytes);
  if (!text.ok()) {
    return Status(text.status().code(),
                  "reading the tokenizer " + path + ": " + text.status().message() +
                      ". hint: give a tokenizer.json, or a folder with one or with vocab.json and "
                      "merges.txt");
  }
  Result<TokenizerDefinition> definition = ParseTokenizerJson(*text);
  if (!definition.ok()) return definition.status().WithContext("reading the tokenizer " + file);
  Result<Tokenizer> tokenizer = CreateFrom(*definition, *std::move(text));
  if (!tokenizer.ok()) return tokenizer.status().WithContext("reading the tokenizer " + file);
  return tokenizer;
}

Result<Tokenizer> Tokenizer::Create(const TokenizerDefinition& definition) {
  return CreateFrom(definition, WriteTokenizerJson(definition));
}

Result<Tokenizer> Tokenizer::CreateFrom(const TokenizerDefinition& definition, std::string json) {
  TokenIds ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.empty()) continue;
    if (!ids.emplace(token, static_cast<int32_t>(id)).second) {
      return InvalidError("the vocabulary holds " + Show(token) + " twice");
    }
  }
  WEFT_ASSIGN_OR_RETURN(auto byte_tokens, FindByteTokens(ids));
  Tokenizer tokenizer(byte_tokens);
  WEFT_RETURN_IF_ERROR(AddMerges(definition, ids, tokenizer.merges_));
  tokenizer.pattern_ = definition.pattern;
  tokenizer.add_prefix_space_ = definition.add_prefix_space;
  tokenizer.bytes_.reserve(definition.tokens.size());
  for (const std::string& token : definition.tokens) {
    tokenizer.bytes_.push_back(AlphabetToBytes(token).value_or(token));
  }
  for (const AddedToken& token : definition.added) {
    auto it = ids.find(token.content);
    if (it != ids.end() && it->second != token.id) {
      return InvalidError("the added token " + Show(token.content) + " has the id " +
                          std::to_string(token.id) + ", but " + std::to_string(it->second) +
                          " in the vocabulary");
    }
    // The spelling of a vocabulary entry is known; any other use of its id would be a second token.
    if (it != ids.end()) tokenizer.bytes_[static_cast<size_t>(token.id)].clear();
  }
  WEFT_RETURN_IF_ERROR(tokenizer.AddTokens(definition.added));
  if (definition.ignore_merges) {
    for (size_t id = 0; id < definition.tokens.size(); ++id) {
      if (!definition.tokens[id].empty()) {
        tokenizer.whole_pieces_.emplace(tokenizer.bytes_[id], static_cast<int32_t>(id));
      }
    }
    for (const AddedToken& token : definition.added) tokenizer.whole_pieces_.erase(token.content);
  }
  tokenizer.json_ = std::move(json);
  tokenizer.hash_ = HashHex(std::as_bytes(std::span(tokenizer.json_)));
  return tokenizer;
}

Status Tokenizer::AddTokens(const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    auto id = static_cast<size_t>(token.id);
    if (id >= bytes_.size()) bytes_.resize(id + 1);
    if (!bytes_[id].empty()) {
      return InvalidError("the added token " + Show(token.content) + " has the id " +
                          std::to_string(token.id) + " of " + Show(bytes_[id]));
    }
    bytes_[id] = token.content;
    added_first_bytes_.set(static_cast<unsigned char>(token.content[0]));
    only_special_added_ &= token.special;
    if (token.special && !end_of_text_ &&
        (token.content == "<|endoftext|>" || token.content == "<|end_of_text|>" ||
         token.content == "</s>")) {
      end_of_text_ = token.id;
    }
  }
  added_ = added;
  std::stable_sort(added_.begin(), added_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  return OkStatus();
}

const AddedToken* Tokenizer::MatchAdded(std::string_view text, SpecialTokens special) const {
  for (const AddedToken& token : added_) {
    if (token.special && special == SpecialTokens::kAsText) continue;
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

void Tokenizer::Encode(std::string_view text, std::vector<int32_t>& out,
                       SpecialTokens special) const {
  if (added_.empty() || (only_special_added_ && special == SpecialTokens::kAsText)) {
    EncodePlain(text, out);
    return;
  }
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = added_first_bytes_[static_cast<unsigned char>(text[at])]
                                  ? MatchAdded(text.substr(at), special)
                                  : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    EncodePlain(text.substr(start, at - start), out);
    out.push_back(token->id);
    at += token->content.size();
    start = at;
  }
  EncodePlain(text.substr(start), out);
}

void Tokenizer::EncodePlain(std::string_view text, std::vector<int32_t>& out) const {
  std::string prefixed;
  if (add_prefix_space_ && !text.empty() && text[0] != ' ') {
    prefixed = ' ';
    prefixed += text;
    text = prefixed;
  }
  while (!text.empty()) {
    std::string_view piece = text.substr(0, NextPiece(pattern_, text));
    text.remove_prefix(piece.size());
    if (!whole_pieces_.empty()) {
      if (auto it = whole_pieces_.find(piece); it != whole_pieces_.end()) {
        out.push_back(it->second);
        continue;
      }
    }
    merges_.Encode(piece, out);
  }
}

size_t Tokenizer::SafeCut(std::string_view text, size_t at) const {
  if (pattern_ == SplitPattern::kNone || !only_special_added_) return text.size();
  auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (at = std::max<size_t>(at, 1); at < text.size(); ++at) {
    if (text[at] == ' ' && is_letter(text[at - 1])) return at;
  }
  return text.size();
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || bytes_[static_cast<size_t>(id)].empty()) {
      return InvalidError("token " + std::to_string(id) + " is not in the vocabulary of " +
                          std::to_string(vocab_size()) + " tokens");
    }
    text += bytes_[static_cast<size_t>(id)];
  }
  return text;
}

}  // namespace weft
