#include "common/formats/tokenizer.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "common/formats/byte_bpe.h"
#include "common/formats/sentencepiece_model.h"
#include "common/formats/unicode.h"
#include "common/formats/unigram.h"
#include "common/formats/utf8.h"
#include "common/formats/wordpiece.h"
#include "common/hash.h"
#include "common/json.h"

namespace weft {
namespace {

std::string Show(const std::string& text) {
  return Json(text.substr(0, 60)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::unique_ptr<TokenModel>> NewModel(const TokenizerDefinition& definition) {
  switch (definition.kind) {
    case TokenizerKind::kWordPiece:
      return WordPieceModel::New(definition);
    case TokenizerKind::kUnigram:
      return UnigramModel::New(definition);
    case TokenizerKind::kByteBpe:
      break;
  }
  return ByteBpeModel::New(definition);
}

std::string NameOf(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kWordPiece:
      return "WordPiece";
    case TokenizerKind::kUnigram:
      return "Unigram";
    case TokenizerKind::kByteBpe:
      break;
  }
  return "byte-level BPE";
}

/// The first of these names that a special token has.
std::optional<int32_t> FindNamed(const std::vector<AddedToken>& added,
                                 std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    for (const AddedToken& token : added) {
      if (token.special && token.content == name) return token.id;
    }
  }
  return std::nullopt;
}

/// Where the spaces before the end of `text` begin.
size_t SpacesBefore(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    at += static_cast<size_t>(c.bytes);
    if (!IsUnicodeSpace(c.code)) end = at;
  }
  return end;
}

/// Where the spaces at `at` end.
size_t SpacesAfter(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = ReadUtf8(text, at);
    if (!IsUnicodeSpace(c.code)) break;
    at += static_cast<size_t>(c.bytes);
  }
  return at;
}

}  // namespace

void Tokenizer::AddedTokens::Add(const AddedToken& token) {
  tokens.push_back(token);
  first_bytes.set(static_cast<unsigned char>(token.content[0]));
  only_special &= token.special;
}

void Tokenizer::AddedTokens::Sort() {
  std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
}

const AddedToken* Tokenizer::AddedTokens::Match(std::string_view text,
                                                SpecialTokens special) const {
  if (!first_bytes[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const AddedToken& token : tokens) {
    if (token.special && special == SpecialTokens::kAsText) continue;
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

Result<Tokenizer> Tokenizer::Create(const TokenizerDefinition& definition) {
  return CreateFrom(definition, WriteTokenizerJson(definition));
}

Result<Tokenizer> Tokenizer::FromJson(std::string json) {
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTokenizerJson(json));
  return CreateFrom(definition, std::move(json));
}

Result<Tokenizer> Tokenizer::CreateFrom(const TokenizerDefinition& definition, std::string json) {
  Tokenizer tokenizer;
  WEFT_RETURN_IF_ERROR(tokenizer.AddTokens(definition));
  WEFT_ASSIGN_OR_RETURN(tokenizer.model_, NewModel(definition));
  if (definition.kind == TokenizerKind::kWordPiece) {
    // Written like other words, with a space before them.
    for (size_t id = 0; id < definition.tokens.size(); ++id) tokenizer.added_by_id_[id].clear();
  }
  tokenizer.kind_ = NameOf(definition.kind);
  tokenizer.normalizer_ = definition.normalizer;
  tokenizer.form_ = definition.form;
  tokenizer.pair_form_ = definition.pair_form;
  tokenizer.FindSpecialTokens(definition.added);
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
  tokenizer.SetContent(std::move(json));
  return tokenizer;
}

Result<Tokenizer> Tokenizer::FromSentencePiece(std::string bytes) {
  WEFT_ASSIGN_OR_RETURN(SentencePieceFile file, ParseSentencePiece(bytes));
  Tokenizer tokenizer;
  tokenizer.kind_ = "SentencePiece";
  TokenizerDefinition definition;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    definition.tokens.push_back(piece.text);
    if (piece.type == PieceType::kControl || piece.type == PieceType::kUnknown) {
      definition.added.push_back(
          {.id = static_cast<int32_t>(id), .content = piece.text, .special = true});
    }
  }
  WEFT_RETURN_IF_ERROR(tokenizer.AddTokens(definition));
  tokenizer.FindSpecialTokens(definition.added);
  if (file.end >= 0) {
    tokenizer.end_of_text_ = file.end;
    tokenizer.form_.end = {file.end};
    tokenizer.pair_form_ = {.middle = {file.end}, .end = {file.end}};
  }
  if (file.padding >= 0) tokenizer.padding_ = file.padding;
  if (!tokenizer.padding_) tokenizer.padding_ = tokenizer.end_of_text_;
  WEFT_ASSIGN_OR_RETURN(tokenizer.model_, SentencePieceModel::New(std::move(file)));
  tokenizer.is_json_ = false;
  tokenizer.SetContent(std::move(bytes));
  return tokenizer;
}

Status Tokenizer::AddTokens(const TokenizerDefinition& definition) {
  std::unordered_map<std::string_view, int32_t> ids;
  known_.resize(definition.tokens.size());
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.empty()) continue;
    known_[id] = true;
    if (!ids.emplace(token, static_cast<int32_t>(id)).second) {
      return InvalidError("the vocabulary holds " + Show(token) + " twice");
    }
  }
  added_by_id_.resize(known_.size());
  for (const AddedToken& token : definition.added) {
    const auto id = static_cast<size_t>(token.id);
    auto it = ids.find(token.content);
    if (it != ids.end() && it->second != token.id) {
      return InvalidError("the added token " + Show(token.content) + " has the id " +
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
          "the added token " + Show(token.content) + " has the id " + std::to_string(token.id) +
          " of " + Show(added_by_id_[id].empty() ? definition.tokens[id] : added_by_id_[id]));
    }
    known_[id] = true;
    added_by_id_[id] = token.content;
    (token.normalized ? normalized_ : raw_).Add(token);
  }
  raw_.Sort();
  normalized_.Sort();
  return OkStatus();
}

void Tokenizer::FindSpecialTokens(const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    if (token.special) special_tokens_.push_back(token.id);
  }
  std::sort(special_tokens_.begin(), special_tokens_.end());
  end_of_text_ = FindNamed(added, {"<|endoftext|>", "<|end_of_text|>", "</s>"});
  mask_ = FindNamed(added, {"[MASK]", "<mask>", "<|mask|>"});
  padding_ =
      FindNamed(added, {"[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"});
  if (!padding_) padding_ = end_of_text_;
  // A language model's texts begin with a token that says so; only the end matters here.
  if (form_.end.empty() && end_of_text_) form_.end = {*end_of_text_};
  if (pair_form_.middle.empty() && !form_.end.empty()) {
    pair_form_ = {.begin = form_.begin, .middle = form_.end, .end = form_.end};
  }
}

void Tokenizer::SetContent(std::string content) {
  content_ = std::move(content);
  hash_ = HashHex(std::as_bytes(std::span(content_)));
}

template <class Plain>
void Tokenizer::SplitAt(const AddedTokens& added, std::string_view text, SpecialTokens special,
                        std::vector<int32_t>& out, Plain&& plain) const {
  size_t start = 0;
  if (!added.tokens.empty() && !(added.only_special && special == SpecialTokens::kAsText)) {
    for (size_t at = 0; at < text.size();) {
      const AddedToken* token = added.Match(text.substr(at), special);
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::string_view before = text.substr(start, at - start);
      if (token->lstrip) before = before.substr(0, SpacesBefore(before));
      plain(before, start == 0);
      out.push_back(token->id);
      at += token->content.size();
      if (token->rstrip) at = SpacesAfter(text, at);
      start = at;
    }
  }
  plain(text.substr(start), start == 0);
}

void Tokenizer::EncodeNormalized(std::string_view text, bool at_start, SpecialTokens special,
                                 std::vector<int32_t>& out) const {
  SplitAt(normalized_, text, special, out, [&](std::string_view part, bool first) {
    if (!part.empty()) model_->Encode(part, at_start && first, out);
  });
}

void Tokenizer::Encode(std::string_view text, std::vector<int32_t>& out,
                       SpecialTokens special) const {
  SplitAt(raw_, text, special, out, [&](std::string_view part, bool first) {
    if (part.empty()) return;
    if (normalizer_.empty()) {
      EncodeNormalized(part, first, special, out);
    } else {
      EncodeNormalized(Normalize(normalizer_, part), first, special, out);
    }
  });
}

size_t Tokenizer::SafeCut(std::string_view text, size_t at) const {
  if (!model_->CutsAtSpaces() || !raw_.only_special || !normalized_.only_special) {
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
