#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/formats/bpe.h"
#include "common/formats/token_model.h"
#include "common/formats/tokenizer_json.h"

namespace weft {

/// Byte-level BPE: GPT-2, Llama 3, Qwen2, GPT-NeoX.
class ByteBpeModel : public TokenModel {
 public:
  /// kInvalid: a byte without token, or a merge of unknown tokens.
  static Result<std::unique_ptr<TokenModel>> New(const TokenizerDefinition& definition);

  void Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return pattern_ != SplitPattern::kNone; }

 private:
  explicit ByteBpeModel(const std::array<int32_t, 256>& byte_tokens) : merges_(byte_tokens) {}

  BpeMerges merges_;
  SplitPattern pattern_ = SplitPattern::kGpt2;
  bool add_prefix_space_ = false;
  std::vector<std::string> bytes_;                              ///< By id.
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  ///< Filled for ignore_merges.
};

}  // namespace weft
