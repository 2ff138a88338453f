#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// Trains a byte-level BPE tokenizer (Sennrich et al. 2016): again and again the most frequent pair
/// of adjacent tokens, of equally frequent ones the pair with the smaller ids, becomes a token.
/// Deterministic: only the counts of words matter, not the order of the texts. Not thread-safe.
class BpeTrainer {
 public:
  /// Counts the words of one document, cut as GPT-2 does.
  void Add(std::string_view text);

  /// A tokenizer of `vocab_size` tokens: the 256 bytes in the order of the byte alphabet, the
  /// merges, and last the special token "<|endoftext|>". Fewer when no pair occurs twice any more.
  /// kInvalid: vocab_size below 257 or past kMaxTokenId.
  Result<TokenizerDefinition> Train(int64_t vocab_size) const;

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> words_;
};

}  // namespace weft
