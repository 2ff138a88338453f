#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/byte_trie.h"
#include "common/formats/piece_speller.h"
#include "common/formats/token_model.h"
#include "common/formats/tokenizer_json.h"

namespace weft {

/// Unigram language model (Kudo 2018, arXiv 1804.10959): each word becomes the pieces whose scores
/// sum to the most (Viterbi). What no piece covers is the unknown token, or with byte fallback the
/// tokens of its bytes.
class UnigramModel : public TokenModel {
 public:
  /// kInvalid: a score that is not finite, or byte fallback without all bytes.
  static Result<std::unique_ptr<TokenModel>> New(const TokenizerDefinition& definition);

  Status Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return cuts_at_spaces_; }

  /// Appends the ids of one word. kInvalid: it has a character without token, and there is no
  /// unknown token.
  Status EncodeWord(std::string_view word, std::vector<int32_t>& out) const;

 private:
  UnigramModel() = default;
  Status EncodeUnknown(std::string_view text, std::vector<int32_t>& out) const;

  PieceSpeller speller_;
  std::vector<double> scores_;
  ByteTrie trie_;
  std::vector<WordSplit> splits_;
  double unknown_score_ = 0;
  int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  bool single_precision_ = false;
  bool cuts_at_spaces_ = false;
};

}  // namespace weft
