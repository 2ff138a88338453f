#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/pretokenizer.h"
#include "common/status.h"

namespace weft {

/// A token that stands outside the merges.
struct AddedToken {
  int32_t id = 0;
  std::string content;   ///< As it is spelt in text.
  bool special = false;  ///< Means control (end of text, ...): never read from a user's text.
};

/// A byte-level BPE tokenizer as its files describe it. Strings are in the byte alphabet
/// (common/formats/byte_alphabet.h).
struct TokenizerDefinition {
  std::vector<std::string> tokens;                          ///< By id; "" where an id is not used.
  std::vector<std::pair<std::string, std::string>> merges;  ///< By rank.
  std::vector<AddedToken> added;
  SplitPattern pattern = SplitPattern::kGpt2;
  bool add_prefix_space = false;  ///< A space goes before text that begins without one.
  bool ignore_merges = false;     ///< A piece that is a token is never built by merging.
};

inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// Reads a tokenizer.json (version 1.0) with a byte-level BPE model: pre-tokenizer ByteLevel, or
/// Split by a known pattern and then ByteLevel; merges as strings or as pairs. Truncation, padding
/// and post-processor concern inference and are skipped. kInvalid names the part that is malformed
/// or not supported (other models, normalizers, dropout, byte fallback, ...).
Result<TokenizerDefinition> ParseTokenizerJson(std::string_view text);

/// Reads the two files of GPT-2's release: vocab.json (token to id) and merges.txt.
/// "<|endoftext|>" becomes a special token when the vocabulary has it.
Result<TokenizerDefinition> ParseVocabAndMerges(std::string_view vocab_json,
                                                std::string_view merges_text);

/// The tokenizer.json of a definition. ParseTokenizerJson and Python's `tokenizers` read it.
std::string WriteTokenizerJson(const TokenizerDefinition& definition);

}  // namespace weft
