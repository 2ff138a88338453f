#include "common/formats/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/formats/bpe_model.h"
#include "common/formats/sentencepiece_model.h"
#include "common/formats/unigram.h"
#include "common/formats/utf8.h"
#include "common/formats/wordpiece.h"
#include "common/json.h"

namespace weft {
namespace {

/// Bytes of a token in a message.
constexpr size_t kShownBytes = 60;

Result<std::unique_ptr<TokenModel>> NewModel(const TokenizerDefinition& definition) {
  switch (definition.kind) {
    case TokenizerKind::kWordPiece:
      return WordPieceModel::New(definition);
    case TokenizerKind::kUnigram:
      return UnigramModel::New(definition);
    case TokenizerKind::kBpe:
      break;
  }
  return BpeModel::New(definition);
}

std::string NameOf(const TokenizerDefinition& definition) {
  switch (definition.kind) {
    case TokenizerKind::kWordPiece:
      return "WordPiece";
    case TokenizerKind::kUnigram:
      return "Unigram";
    case TokenizerKind::kBpe:
      break;
  }
  return definition.byte_level ? "byte-level BPE" : "BPE";
}

std::string Without(std::string_view text, std::string_view part) {
  std::string rest;
  for (size_t at; (at = text.find(part)) != std::string_view::npos;) {
    rest += text.substr(0, at);
    text.remove_prefix(at + part.size());
  }
  return rest.append(text);
}

/// Text may be cut between a letter and a space before this step.
bool KeepsCuts(const NormalizerStep& step) {
  const auto* replace = std::get_if<ReplaceNormalizer>(&step);
  if (replace != nullptr) return replace->whole_run && replace->from == " ";
  return !std::holds_alternative<StripNormalizer>(step) &&
         !std::holds_alternative<PrependNormalizer>(step);
}

}  // namespace

Result<Tokenizer> Tokenizer::Create(TokenizerDefinition definition, TokenizerConfig config) {
  WEFT_RETURN_IF_ERROR(AddFromConfig(config, "the vocabulary", definition).status());
  std::string json = WriteTokenizerJson(definition);
  return CreateFrom(definition, std::move(json), std::move(config));
}

Result<Tokenizer> Tokenizer::FromJson(std::string json, TokenizerConfig config) {
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTokenizerJson(json));
  WEFT_RETURN_IF_ERROR(AddFromConfig(config, "tokenizer.json", definition).status());
  return CreateFrom(definition, std::move(json), std::move(config));
}

Result<Tokenizer> Tokenizer::CreateFrom(const TokenizerDefinition& definition, std::string json,
                                        TokenizerConfig config) {
  Tokenizer tokenizer;
  WEFT_RETURN_IF_ERROR(tokenizer.AddTokens(definition));
  WEFT_ASSIGN_OR_RETURN(tokenizer.model_, NewModel(definition));
  if (definition.kind == TokenizerKind::kWordPiece) {
    // Written like other words, with a space before them.
    for (size_t id = 0; id < definition.tokens.size(); ++id) tokenizer.added_by_id_[id].clear();
  }
  tokenizer.kind_ = NameOf(definition);
  tokenizer.normalizer_ = definition.normalizer;
  tokenizer.config_ = std::move(config);
  tokenizer.model_form_ = definition.form;
  tokenizer.model_pair_form_ = definition.pair_form;
  tokenizer.SetFiles("tokenizer.json", std::move(json));
  WEFT_RETURN_IF_ERROR(tokenizer.FindRoles(definition));
  for (const SequenceForm* form : {&tokenizer.form_, &tokenizer.pair_form_}) {
    for (const auto* ids : {&form->begin, &form->middle, &form->end}) {
      for (int64_t id : *ids) {
        if (id >= tokenizer.vocab_size() || !tokenizer.known_[static_cast<size_t>(id)]) {
          return InvalidError("the post_processor adds the token " + std::to_string(id) +
                              ", which is not in the vocabulary");
        }
      }
    }
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::FromSentencePiece(std::string bytes, TokenizerConfig config) {
  WEFT_ASSIGN_OR_RETURN(SentencePieceFile file,
                        ParseSentencePiece(bytes, PrefixSwitchesOf(config)));
  Tokenizer tokenizer;
  tokenizer.kind_ = "SentencePiece";
  TokenizerDefinition definition;
  definition.byte_level = false;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    definition.tokens.push_back(piece.text);
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (special && !HasSpecialToken(config, piece.text)) {
      definition.added.push_back(
          {.id = static_cast<int32_t>(id), .content = piece.text, .special = true});
    }
  }
  WEFT_RETURN_IF_ERROR(AddFromConfig(config, "the .model file", definition).status());
  WEFT_RETURN_IF_ERROR(tokenizer.AddTokens(definition));
  tokenizer.config_ = std::move(config);
  tokenizer.SetFiles("tokenizer.model", std::move(bytes));
  // Its own names for the tokens with a role are as good as those of a file next to it.
  TokenizerConfig& known = tokenizer.config_;
  auto name_role = [&](const char* role, int32_t id) {
    if (id < 0) return;
    const std::string& spelling = file.pieces[static_cast<size_t>(id)].text;
    if (known.roles.emplace(role, spelling).second) known.role_files[role] = "the .model file";
  };
  name_role("bos_token", file.begin);
  name_role("eos_token", file.end);
  name_role("pad_token", file.padding);
  // What these classes of transformers add unless told otherwise.
  const std::string base = BaseClass(known);
  const bool llama = base == "Llama" || base == "CodeLlama" || base == "Gemma";
  const bool t5 = base == "T5" || base == "MT5";
  if (llama && !known.add_bos_token) known.add_bos_token = true;
  if (t5 && !known.add_eos_token) known.add_eos_token = true;
  WEFT_RETURN_IF_ERROR(tokenizer.FindRoles(definition));
  WEFT_ASSIGN_OR_RETURN(tokenizer.model_, SentencePieceModel::New(std::move(file)));
  return tokenizer;
}

std::optional<std::string> Tokenizer::TokenOf(int32_t id) const {
  const auto at = static_cast<size_t>(id);
  if (id < 0 || at >= known_.size() || !known_[at]) return std::nullopt;
  return at < tokens_.size() && !tokens_[at].empty() ? tokens_[at] : added_by_id_[at];
}

Status Tokenizer::AddTokens(const TokenizerDefinition& definition) {
  tokens_ = definition.tokens;
  std::unordered_map<std::string_view, int32_t> ids;
  known_.resize(definition.tokens.size());
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.empty()) continue;
    known_[id] = true;
    if (!ids.emplace(token, static_cast<int32_t>(id)).second) {
      return InvalidError("the vocabulary holds " + Quoted(token, kShownBytes) + " twice");
    }
  }
  added_by_id_.resize(known_.size());
  for (const AddedToken& token : definition.added) {
    const auto id = static_cast<size_t>(token.id);
    auto it = ids.find(token.content);
    if (it != ids.end() && it->second != token.id) {
      return InvalidError("the added token " + Quoted(token.content, kShownBytes) + " has the id " +
                          std::to_string(token.id) + ", but " + std::to_string(it->second) +
                          " in the vocabulary");
    }
    if (id >= known_.size()) {
      known_.resize(id + 1);
      added_by_id_.resize(id + 1);
    }
    // The spelling of a vocabulary entry is known; any other use of its id would be a second token.
    if (!added_by_id_[id].empty() || (known_[id] && it == ids.end())) {
      return InvalidError(
          "the added token " + Quoted(token.content, kShownBytes) + " has the id " +
          std::to_string(token.id) + " of " +
          Quoted(added_by_id_[id].empty() ? definition.tokens[id] : added_by_id_[id], kShownBytes));
    }
    known_[id] = true;
    added_by_id_[id] = token.content;
    if (token.content.size() > kLongestAddedToken) {
      return InvalidError("the added token " + Quoted(token.content, kShownBytes) + " has " +
                          std::to_string(token.content.size()) + " bytes; at most " +
                          std::to_string(kLongestAddedToken) + " are supported");
    }
    if (!token.normalized) {
      raw_.Add(token, token.content);
      continue;
    }
    const std::string spelling = Normalize(definition.normalizer, token.content);
    if (!spelling.empty()) normalized_.Add(token, spelling);
  }
  return OkStatus();
}

Status Tokenizer::FindRoles(const TokenizerDefinition& definition) {
  for (const AddedToken& token : definition.added) {
    if (token.special) special_tokens_.push_back(token.id);
  }
  std::sort(special_tokens_.begin(), special_tokens_.end());
  auto id_of = [&](const std::string& spelling) -> std::optional<int32_t> {
    for (const AddedToken& token : definition.added) {
      if (token.content == spelling) return token.id;
    }
    const auto it = std::find(definition.tokens.begin(), definition.tokens.end(), spelling);
    if (it == definition.tokens.end()) return std::nullopt;
    return static_cast<int32_t>(it - definition.tokens.begin());
  };
  WEFT_ASSIGN_OR_RETURN(roles_, FindTokenRoles(config_, file_name(), definition, id_of, model_form_,
                                               model_pair_form_));
  for (int32_t id : roles_.stops) {
    if (id >= vocab_size() || !known_[static_cast<size_t>(id)]) {
      return InvalidError("the eos_token_id " + std::to_string(id) + " of " +
                          config_.model_ids.front().file + " is not in the vocabulary of " +
                          file_name() + ", which has " + std::to_string(vocab_size()) + " tokens");
    }
  }
  form_ = model_form_;
  pair_form_ = model_pair_form_;
  if (form_.end.empty() && roles_.end) form_.end = {*roles_.end};
  if (pair_form_.middle.empty() && !form_.end.empty()) {
    pair_form_ = {.begin = form_.begin, .middle = form_.end, .end = form_.end};
  }
  return OkStatus();
}

void Tokenizer::SetFiles(std::string name, std::string content) {
  files_.push_back({std::move(name), std::move(content)});
  for (auto& [file, text] : {std::pair("tokenizer_config.json", TokenizerConfigJson(config_)),
                             std::pair("generation_config.json", GenerationConfigJson(config_))}) {
    if (!text.empty()) files_.push_back({file, text});
  }
  hash_ = HashOfTokenizerFiles(files_);
}

void Tokenizer::SetChatTemplate(std::string chat_template, const std::vector<int32_t>& end_tokens) {
  config_.tokenizer_config.erase("chat_template");
  config_.chat_template = std::move(chat_template);
  for (int32_t id : end_tokens) {
    if (std::find(roles_.stops.begin(), roles_.stops.end(), id) == roles_.stops.end()) {
      roles_.stops.push_back(id);
    }
  }
  if (roles_.stops.size() > 1) config_.generation_config["eos_token_id"] = roles_.stops;
  TokenizerFile own = std::move(files_.front());
  files_.clear();
  SetFiles(std::move(own.name), std::move(own.content));
}

Status Tokenizer::EncodeNormalized(std::string_view text, bool at_start, SpecialTokens special,
                                   std::string_view guard, std::vector<int32_t>& out) const {
  Status status;
  normalized_.Split(
      text, special,
      [&](std::string_view part, bool first) {
        if (!status.ok() || part.empty()) return;
        if (guard.empty() || part.find(guard) == std::string_view::npos) {
          status = model_->Encode(part, at_start && first, out);
        } else {
          status = model_->Encode(Without(part, guard), at_start && first, out);
        }
      },
      [&](int32_t id) { out.push_back(id); });
  return status;
}

Status Tokenizer::EncodePart(std::string_view part, bool at_start, SpecialTokens special,
                             std::string_view guard, std::vector<int32_t>& out) const {
  if (part.empty()) return OkStatus();
  if (normalizer_.empty()) return EncodeNormalized(part, at_start, special, guard, out);
  return EncodeNormalized(Normalize(normalizer_, part), at_start, special, guard, out);
}

Status Tokenizer::Encode(std::string_view text, std::vector<int32_t>& out,
                         SpecialTokens special) const {
  Status status;
  raw_.Split(
      text, special,
      [&](std::string_view part, bool first) {
        if (status.ok()) status = EncodePart(part, first, special, /*guard=*/"", out);
      },
      [&](int32_t id) { out.push_back(id); });
  return status;
}

Result<size_t> Tokenizer::IdsBefore(std::string_view part, size_t bytes, bool at_start,
                                    std::string_view guard, std::span<const int32_t> ids) const {
  // What is before the cut, or what is after it, is encoded as in the whole, or a token holds
  // bytes of both.
  const SpecialTokens special = SpecialTokens::kAsTokens;
  std::vector<int32_t> before, after;
  WEFT_RETURN_IF_ERROR(EncodePart(part.substr(0, bytes), at_start, special, guard, before));
  const size_t common = static_cast<size_t>(
      std::mismatch(ids.begin(), ids.end(), before.begin(), before.end()).first - ids.begin());
  if (common == before.size()) return common;
  WEFT_RETURN_IF_ERROR(EncodePart(part.substr(bytes), /*at_start=*/false, special, guard, after));
  const bool ends_so =
      after.size() <= ids.size() && std::equal(after.rbegin(), after.rend(), ids.rbegin());
  return ends_so ? ids.size() - after.size() : common;
}

Status Tokenizer::EncodeGuarded(std::string_view text, char32_t guard, std::span<const size_t> cuts,
                                std::vector<int32_t>& out, std::vector<size_t>& places) const {
  std::string guard_text;
  AppendUtf8(guard_text, guard);
  places.clear();
  const SpecialTokens special = SpecialTokens::kAsTokens;
  auto encode = [&](std::string_view part, bool first) -> Status {
    const size_t base = out.size();
    WEFT_RETURN_IF_ERROR(EncodePart(part, first, special, guard_text, out));
    const std::span<const int32_t> ids = std::span(out).subspan(base);
    const auto begin = static_cast<size_t>(part.data() - text.data());
    for (; places.size() < cuts.size() && cuts[places.size()] <= begin + part.size();) {
      const size_t bytes = std::max(cuts[places.size()], begin) - begin;
      size_t before = bytes == 0 ? 0 : ids.size();
      if (bytes > 0 && bytes < part.size()) {
        WEFT_ASSIGN_OR_RETURN(before, IdsBefore(part, bytes, first, guard_text, ids));
      }
      places.push_back(base + before);
    }
    return OkStatus();
  };
  Status status;
  raw_.Split(
      text, special,
      [&](std::string_view part, bool first) {
        if (status.ok()) status = encode(part, first);
      },
      [&](int32_t id) { out.push_back(id); });
  WEFT_RETURN_IF_ERROR(status);
  places.resize(cuts.size(), out.size());
  return OkStatus();
}

size_t Tokenizer::SafeCut(std::string_view text, size_t at) const {
  if (!model_->CutsAtSpaces() || !raw_.only_special() || !normalized_.only_special() ||
      !std::all_of(normalizer_.begin(), normalizer_.end(), KeepsCuts)) {
    return text.size();
  }
  auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (at = std::max<size_t>(at, 1); at < text.size(); ++at) {
    if (text[at] == ' ' && is_letter(text[at - 1])) return at;
  }
  return text.size();
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool at_start) const {
  std::string text;
  size_t begin = 0;
  auto decode_model = [&](size_t end) {
    if (begin == end) return;
    model_->Decode(ids.subspan(begin, end - begin), at_start, text);
    at_start = false;
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    if (ids[i] < 0 || id >= known_.size() || !known_[id]) {
      return InvalidError("token " + std::to_string(ids[i]) + " is not in the vocabulary of " +
                          std::to_string(vocab_size()) + " tokens");
    }
    if (added_by_id_[id].empty()) continue;
    decode_model(i);
    text += added_by_id_[id];
    at_start = false;
    begin = i + 1;
  }
  decode_model(ids.size());
  return text;
}

}  // namespace weft
