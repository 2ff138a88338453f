#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/token_model.h"
#include "common/formats/tokenizer_json.h"

namespace weft {

/// Unigram language model (Kudo 2018, arXiv 1804.10959): each word becomes the pieces whose scores
/// sum to the most (Viterbi). What no piece covers is the unknown token, or with byte fallback the
/// tokens of its bytes.
class UnigramModel : public TokenModel {
 public:
  /// kInvalid: no unknown token, a score that is not finite, or byte fallback without all bytes.
  static Result<std::unique_ptr<TokenModel>> New(const TokenizerDefinition& definition);

  void Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return cuts_at_spaces_; }

  /// Appends the ids of one word.
  void EncodeWord(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Node {
    int32_t token = -1;
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = 0;
  };

  UnigramModel() = default;
  void AddPiece(std::string_view piece, int32_t token);
  int32_t Child(int32_t node, char byte) const;
  void EncodeUnknown(std::string_view text, std::vector<int32_t>& out) const;

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  std::vector<Node> trie_ = {Node{}};
  std::array<int32_t, 256> roots_{};  ///< Nodes of the first bytes, -1 for none.
  std::array<int32_t, 256> bytes_{};  ///< Tokens of bytes, for byte fallback.
  std::vector<int32_t> byte_of_;      ///< By id: the byte it falls back for, or -1.
  std::vector<WordSplit> splits_;
  std::string metaspace_;
  double unknown_score_ = 0;
  int32_t unknown_ = 0;
  bool byte_fallback_ = false;
  bool single_precision_ = false;
  bool cuts_at_spaces_ = false;
};

}  // namespace weft
