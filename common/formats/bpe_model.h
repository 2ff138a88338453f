#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/formats/bpe.h"
#include "common/formats/piece_speller.h"
#include "common/formats/token_model.h"
#include "common/formats/tokenizer_json.h"

namespace weft {

/// Byte-pair encoding, over bytes (GPT-2, Llama 3, Qwen2, GPT-NeoX) or over characters with the
/// bytes of those that have no token to fall back on (Llama 2, Mistral, Gemma).
class BpeModel : public TokenModel {
 public:
  /// kInvalid: a merge of unknown tokens.
  static Result<std::unique_ptr<TokenModel>> New(const TokenizerDefinition& definition);

  /// What has no token is the unknown token, and nothing when the tokenizer has none, as in the
  /// reference implementation. kInvalid: the file names an unknown token that is not in its
  /// vocabulary, and the text needs it.
  Status Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return cuts_at_spaces_; }

 private:
  BpeModel() = default;

  void EncodePiece(std::string_view piece, std::vector<int32_t>& out, bool& lost) const;
  void AddCharacters(std::string_view piece, std::vector<int32_t>& out, bool& lost) const;

  BpeMerges merges_;
  std::vector<WordSplit> splits_;
  bool cuts_at_spaces_ = false;
  bool byte_level_ = true;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool all_bytes_ = true;  ///< Each byte has a token.
  std::string unknown_token_;
  int32_t unknown_ = -1;
  std::array<int32_t, 256> byte_tokens_{};                      ///< Of byte-level BPE, -1 for none.
  PieceSpeller speller_;                                        ///< Of BPE over characters.
  std::unordered_map<std::string_view, int32_t> characters_;    ///< And its tokens of one each.
  std::vector<std::string> bytes_;                              ///< Of byte-level BPE, by id.
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  ///< Filled for ignore_merges.
};

}  // namespace weft
