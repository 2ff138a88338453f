#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/env.h"
#include "common/formats/bpe.h"
#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// What happens to the spelling of a special token in a text.
enum class SpecialTokens : uint8_t {
  kAsText,   ///< Plain text: users' documents must not be able to inject control tokens.
  kAsTokens  ///< The token, for trusted text.
};

/// Byte-level BPE: text to token ids and back. Immutable, so thread-safe.
class Tokenizer {
 public:
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Reads a tokenizer.json, or a folder that holds one or vocab.json and merges.txt. kInvalid says
  /// what is malformed or not supported.
  static Result<Tokenizer> Load(Env& env, const std::string& path);

  /// Builds a tokenizer. kInvalid: a byte without token, a merge of unknown tokens, ids that clash.
  static Result<Tokenizer> Create(const TokenizerDefinition& definition);

  /// Appends the ids of `text`, any bytes: invalid UTF-8 is encoded too. Nothing is added at the
  /// start or end.
  void Encode(std::string_view text, std::vector<int32_t>& out,
              SpecialTokens special = SpecialTokens::kAsText) const;

  /// The first place at or after `at` where text can be cut so that the ids of the two parts, one
  /// after the other, are those of the whole (special tokens as text); text.size() when none is
  /// known. Every pattern ends a piece between a letter and a space.
  size_t SafeCut(std::string_view text, size_t at) const;

  /// The bytes of the tokens. The inverse of Encode (after the prefix space, if the tokenizer adds
  /// one). kInvalid names an id that is not in the vocabulary.
  Result<std::string> Decode(std::span<const int32_t> ids) const;

  /// Largest id + 1.
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }

  /// The special token that ends a document: <|endoftext|>, <|end_of_text|> or </s>.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }

  /// The tokenizer.json: as it was read, or as WriteTokenizerJson writes it.
  const std::string& json() const { return json_; }

  /// ContentHash of json(): equal hashes give equal ids.
  const std::string& hash() const { return hash_; }

 private:
  explicit Tokenizer(const std::array<int32_t, 256>& byte_tokens) : merges_(byte_tokens) {}

  static Result<Tokenizer> CreateFrom(const TokenizerDefinition& definition, std::string json);
  Status AddTokens(const std::vector<AddedToken>& added);
  void EncodePlain(std::string_view text, std::vector<int32_t>& out) const;

  /// The longest added token at the start of `text`.
  const AddedToken* MatchAdded(std::string_view text, SpecialTokens special) const;

  BpeMerges merges_;
  SplitPattern pattern_ = SplitPattern::kGpt2;
  bool add_prefix_space_ = false;
  std::vector<std::string> bytes_;  ///< By id; "" where an id is not used.
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  ///< Filled for ignore_merges.
  std::vector<AddedToken> added_;                               ///< Longest first.
  std::bitset<256> added_first_bytes_;
  bool only_special_added_ = true;
  std::optional<int32_t> end_of_text_;
  std::string json_;
  std::string hash_;
};

}  // namespace weft
