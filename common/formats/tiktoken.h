#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// A published vocabulary. Patterns are written as tokenizer.json has them.
struct PublishedRanks {
  struct Special {
    int32_t id;
    const char* name;
  };

  const char* name;
  const char* sha256;  ///< Of its file, in hex.
  std::string_view pattern;
  std::vector<Special> special;  ///< Of Llama 3 those with a use; the others are reserved.
};

/// The vocabulary whose file has this hash, or null.
const PublishedRanks* FindPublishedRanks(std::string_view sha256);

/// Adds the special tokens of the vocabulary, and what it puts around texts.
void AddSpecialTokens(const PublishedRanks& known, TokenizerDefinition& definition);

/// Whether a file looks like one of tiktoken: its first line is base64, a space and a number.
bool LooksLikeTiktoken(std::string_view text);

/// Reads ranks of tiktoken: lines of a token's bytes in base64, a space and its rank, which is its
/// id and its priority in merging. Merges are all pairs of tokens that make up a token. Of the
/// published vocabularies (r50k_base, p50k_base, cl100k_base, o200k_base, Llama 3), which are known
/// by the hash of the file, the pattern and the special tokens are known; the pattern of others is
/// `pattern`, and they have no special tokens of their own. kInvalid names the line that is
/// malformed, asks for a pattern, or says that it is not that of the known vocabulary.
Result<TokenizerDefinition> ParseTiktoken(std::string_view text,
                                          const std::optional<std::string>& pattern);

}  // namespace weft
