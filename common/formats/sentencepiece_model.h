#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/formats/byte_trie.h"
#include "common/formats/sentencepiece_file.h"
#include "common/formats/token_model.h"

namespace weft {

/// SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226) as its own library encodes: the
/// normalization of the file, then unigram pieces (UnigramModel) or BPE by the pieces' scores.
class SentencePieceModel : public TokenModel {
 public:
  /// kInvalid as UnigramModel::New.
  static Result<std::unique_ptr<TokenModel>> New(SentencePieceFile file);

  Status Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return false; }

 private:
  explicit SentencePieceModel(SentencePieceFile file);

  /// Length of the longest user-defined piece at the start of `text`; 0 when there is none.
  size_t MatchUserDefined(std::string_view text) const {
    return user_defined_.Longest(text).second;
  }

  /// What the first characters of `text` become, and how many bytes they are.
  std::pair<std::string_view, size_t> NormalizePrefix(std::string_view text) const;
  std::string Normalize(std::string_view text, bool at_start) const;
  void EncodeBpe(std::string_view text, std::vector<int32_t>& out) const;

  SentencePieceFile file_;
  std::unordered_map<std::string_view, int32_t> ids_;  ///< Of pieces that occur in texts.
  ByteTrie user_defined_;
  std::vector<int32_t> byte_tokens_;     ///< For byte fallback.
  std::unique_ptr<TokenModel> unigram_;  ///< Unless BPE; decodes both.
};

}  // namespace weft
