#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/formats/sequence_form.h"
#include "common/formats/token_model.h"
#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// What happens to the spelling of a special token in a text.
enum class SpecialTokens : uint8_t {
  kAsText,   ///< Plain text: users' documents must not be able to inject control tokens.
  kAsTokens  ///< The token, for trusted text.
};

/// Text to token ids and back: byte-level BPE, WordPiece, Unigram, SentencePiece. Immutable, so
/// thread-safe.
class Tokenizer {
 public:
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Reads a tokenizer.json, a SentencePiece .model, a tiktoken file or a vocab.txt of BERT, told
  /// apart by name and content, or a folder that holds one (the first of tokenizer.json, vocab.json
  /// with merges.txt, tokenizer.model, spiece.model, sentencepiece.bpe.model, vocab.txt). kInvalid
  /// says what is malformed or not supported.
  static Result<Tokenizer> Load(Env& env, const std::string& path);

  /// Builds a tokenizer of byte-level BPE. kInvalid: a byte without token, a merge of unknown
  /// tokens, ids that clash.
  static Result<Tokenizer> Create(const TokenizerDefinition& definition);

  /// The tokenizer that a tokenizer.json describes.
  static Result<Tokenizer> FromJson(std::string json);

  /// The tokenizer of a SentencePiece .model.
  static Result<Tokenizer> FromSentencePiece(std::string bytes);

  /// Appends the ids of `text`, any bytes: invalid UTF-8 is encoded too, by byte-level BPE as it is
  /// and by others as unknown. Nothing is added at the start or end.
  void Encode(std::string_view text, std::vector<int32_t>& out,
              SpecialTokens special = SpecialTokens::kAsText) const;

  /// The first place at or after `at` where text can be cut so that the ids of the two parts, one
  /// after the other, are those of the whole (special tokens as text); text.size() when none is
  /// known. Every pattern ends a piece between a letter and a space.
  size_t SafeCut(std::string_view text, size_t at) const;

  /// The text of the tokens; special ones as they are spelt. Of byte-level BPE without normalizer
  /// it is the inverse of Encode (after the prefix space, if the tokenizer adds one); others lose
  /// what they normalize. `at_start`: nothing stands before it, so a first word has no space
  /// before it. kInvalid names an id that is not in the vocabulary.
  Result<std::string> Decode(std::span<const int32_t> ids, bool at_start = true) const;

  /// Largest id + 1.
  int64_t vocab_size() const { return static_cast<int64_t>(known_.size()); }

  /// "byte-level BPE", "WordPiece", "Unigram" or "SentencePiece".
  const std::string& kind() const { return kind_; }

  /// The special token that ends a document: <|endoftext|>, <|end_of_text|> or </s>.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }

  /// The token that hides another: [MASK] or <mask>.
  std::optional<int32_t> mask() const { return mask_; }

  /// The token that fills up rows: [PAD], <pad> and the like, else the one that ends a text.
  std::optional<int32_t> padding() const { return padding_; }

  /// Ids of all special tokens, ascending.
  const std::vector<int32_t>& special_tokens() const { return special_tokens_; }

  /// What stands around one text, or two, where a model sees them whole: what the file says, else
  /// the end of text after each.
  const SequenceForm& form(bool pair) const { return pair ? pair_form_ : form_; }

  /// Content of the file that Load reads back: a tokenizer.json, or a SentencePiece .model.
  const std::string& content() const { return content_; }

  /// Name for that file: "tokenizer.json" or "tokenizer.model".
  std::string file_name() const { return is_json_ ? "tokenizer.json" : "tokenizer.model"; }

  /// ContentHash of content(): equal hashes give equal ids.
  const std::string& hash() const { return hash_; }

 private:
  /// Added tokens that are looked for at the same time, the longest first.
  struct AddedTokens {
    std::vector<AddedToken> tokens;
    std::bitset<256> first_bytes;
    bool only_special = true;

    void Add(const AddedToken& token);
    void Sort();
    const AddedToken* Match(std::string_view text, SpecialTokens special) const;
  };

  Tokenizer() = default;

  static Result<Tokenizer> CreateFrom(const TokenizerDefinition& definition, std::string json);
  Status AddTokens(const TokenizerDefinition& definition);
  void FindSpecialTokens(const std::vector<AddedToken>& added);
  void SetContent(std::string content);

  /// Calls `plain(text)` for what is between the tokens of `added`, and appends these.
  template <class Plain>
  void SplitAt(const AddedTokens& added, std::string_view text, SpecialTokens special,
               std::vector<int32_t>& out, Plain&& plain) const;
  void EncodeNormalized(std::string_view text, bool at_start, SpecialTokens special,
                        std::vector<int32_t>& out) const;

  std::unique_ptr<TokenModel> model_;
  std::vector<NormalizerStep> normalizer_;
  AddedTokens raw_;                       ///< Looked for before normalization.
  AddedTokens normalized_;                ///< And after.
  std::vector<bool> known_;               ///< By id.
  std::vector<std::string> added_by_id_;  ///< Spelling of added tokens; "" for those of the model.
  std::vector<int32_t> special_tokens_;
  SequenceForm form_;
  SequenceForm pair_form_;
  std::optional<int32_t> end_of_text_;
  std::optional<int32_t> mask_;
  std::optional<int32_t> padding_;
  std::string kind_;
  std::string content_;
  std::string hash_;
  bool is_json_ = true;
};

}  // namespace weft
