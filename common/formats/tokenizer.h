#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/formats/added_tokens.h"
#include "common/formats/sequence_form.h"
#include "common/formats/token_model.h"
#include "common/formats/token_roles.h"
#include "common/formats/tokenizer_config.h"
#include "common/formats/tokenizer_files.h"
#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// Text to token ids and back: byte-level BPE, WordPiece, Unigram, SentencePiece. Thread-safe
/// except SetChatTemplate.
class Tokenizer {
 public:
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Reads a tokenizer.json, a SentencePiece .model, ranks of tiktoken or a vocab.txt of BERT,
  /// distinguished by name and content, or a folder that holds one (the first of tokenizer.json,
  /// vocab.json with merges.txt, tokenizer.model, spiece.model, sentencepiece.bpe.model,
  /// vocab.txt), with the files next to it (TokenizerConfig). A tokenizer.json that is not
  /// supported gives way to a SentencePiece .model in the folder. kInvalid says what is malformed
  /// or not supported, and names both files where two disagree.
  static Result<Tokenizer> Load(Env& env, const std::string& path);

  /// Builds a tokenizer of byte-level BPE. kInvalid: a merge of unknown tokens, ids that clash.
  static Result<Tokenizer> Create(TokenizerDefinition definition, TokenizerConfig config = {});

  /// The tokenizer that a tokenizer.json describes.
  static Result<Tokenizer> FromJson(std::string json, TokenizerConfig config = {});

  /// The tokenizer of a SentencePiece .model.
  static Result<Tokenizer> FromSentencePiece(std::string bytes, TokenizerConfig config = {});

  /// Puts another chat template into its files, and the tokens that end what the assistant says
  /// among those that end what a model writes.
  void SetChatTemplate(std::string chat_template, const std::vector<int32_t>& end_tokens);

  /// Appends the ids of `text`, any bytes: invalid UTF-8 is encoded too, by byte-level BPE as it is
  /// and by others as unknown. Nothing is added at the start or end. kInvalid: a pattern of the
  /// tokenizer takes too long on the text, or the text needs an unknown token and there is none.
  Status Encode(std::string_view text, std::vector<int32_t>& out,
                SpecialTokens special = SpecialTokens::kAsText) const;

  /// Appends the ids of a text whose special tokens become tokens, except for spellings with the
  /// character `guard` in them. That character, which can be none of the text's own, is left out.
  /// Sets places[i] to the number of ids that come before the byte cuts[i] of the text, which
  /// ascend; an id that holds bytes on both sides is not counted. kInvalid as Encode.
  Status EncodeGuarded(std::string_view text, char32_t guard, std::span<const size_t> cuts,
                       std::vector<int32_t>& out, std::vector<size_t>& places) const;

  /// The first place at or after `at` where text can be cut so that the ids of the two parts, one
  /// after the other, are those of the whole (special tokens as text); text.size() when none is
  /// known. Every pattern ends a piece between a letter and a space.
  size_t SafeCut(std::string_view text, size_t at) const;

  /// The text of the tokens; special ones as they are spelt. Of byte-level BPE without normalizer
  /// it is the inverse of Encode (after the prefix space, if the tokenizer adds one); others lose
  /// what they normalize. `at_start`: nothing comes before it, so a first word has no space
  /// before it. kInvalid names an id that is not in the vocabulary.
  Result<std::string> Decode(std::span<const int32_t> ids, bool at_start = true) const;

  /// A token as its file spells it; nothing for an id that is not used.
  std::optional<std::string> TokenOf(int32_t id) const;

  /// Largest id + 1.
  int64_t vocab_size() const { return static_cast<int64_t>(known_.size()); }

  /// "byte-level BPE", "BPE", "WordPiece", "Unigram" or "SentencePiece".
  const std::string& kind() const { return kind_; }

  /// What the files say of the tokenizer and of those of its tokens that have a role.
  const TokenizerConfig& config() const { return config_; }
  const TokenRoles& roles() const { return roles_; }

  /// The token that ends a document.
  std::optional<int32_t> end_of_text() const { return roles_.end; }

  /// The token that hides another: [MASK] or <mask>.
  std::optional<int32_t> mask() const { return roles_.mask; }

  /// The token that fills up rows: [PAD], <pad> and the like, else the one that ends a text.
  std::optional<int32_t> padding() const { return roles_.padding; }

  /// Ids of all special tokens, ascending.
  const std::vector<int32_t>& special_tokens() const { return special_tokens_; }

  /// What the files put around one text, or two, for a model: nothing by most of GPT-2's kind.
  const SequenceForm& model_form(bool pair) const { return pair ? model_pair_form_ : model_form_; }

  /// What comes around a document, or two texts, in training: model_form, and where that puts
  /// nothing after a text, the token that ends a document.
  const SequenceForm& form(bool pair) const { return pair ? pair_form_ : form_; }

  /// The files that Load reads back from one folder: a tokenizer.json or a SentencePiece .model
  /// first, then tokenizer_config.json and generation_config.json if they would say something.
  const std::vector<TokenizerFile>& files() const { return files_; }

  /// Content and name of the first of them.
  const std::string& content() const { return files_.front().content; }
  const std::string& file_name() const { return files_.front().name; }

  /// HashOfTokenizerFiles(files()): equal hashes give equal ids.
  const std::string& hash() const { return hash_; }

 private:
  Tokenizer() = default;

  static Result<Tokenizer> CreateFrom(const TokenizerDefinition& definition, std::string json,
                                      TokenizerConfig config);
  Status AddTokens(const TokenizerDefinition& definition);
  Status FindRoles(const TokenizerDefinition& definition);
  void SetFiles(std::string name, std::string content);

  Status EncodeNormalized(std::string_view text, bool at_start, SpecialTokens special,
                          std::string_view guard, std::vector<int32_t>& out) const;
  Status EncodePart(std::string_view part, bool at_start, SpecialTokens special,
                    std::string_view guard, std::vector<int32_t>& out) const;
  /// How many of the ids of a part of a text come before the byte `bytes` of it.
  Result<size_t> IdsBefore(std::string_view part, size_t bytes, bool at_start,
                           std::string_view guard, std::span<const int32_t> ids) const;

  std::unique_ptr<TokenModel> model_;
  std::vector<NormalizerStep> normalizer_;
  AddedTokens raw_;                       ///< Looked for before normalization.
  AddedTokens normalized_;                ///< And after, in normalized spelling.
  std::vector<bool> known_;               ///< By id.
  std::vector<std::string> tokens_;       ///< By id, as the file spells them.
  std::vector<std::string> added_by_id_;  ///< Spelling of added tokens; "" for those of the model.
  std::vector<int32_t> special_tokens_;
  TokenizerConfig config_;
  TokenRoles roles_;
  SequenceForm model_form_, model_pair_form_;
  SequenceForm form_, pair_form_;
  std::string kind_;
  std::vector<TokenizerFile> files_;
  std::string hash_;
};

}  // namespace weft
