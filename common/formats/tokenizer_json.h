#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/pretokenizer.h"
#include "common/formats/sequence_form.h"
#include "common/formats/text_normalizer.h"
#include "common/formats/word_splitter.h"
#include "common/status.h"

namespace weft {

/// A token that stands outside the model.
struct AddedToken {
  int32_t id = 0;
  std::string content;      ///< As it is spelt in text.
  bool special = false;     ///< Means control (end of text, ...): never read from a user's text.
  bool normalized = false;  ///< Looked for after normalization rather than before.
  bool lstrip = false;      ///< Takes the spaces before it.
  bool rstrip = false;      ///< Takes the spaces after it.
};

enum class TokenizerKind : uint8_t { kByteBpe, kWordPiece, kUnigram };

/// A tokenizer as its files describe it. Strings of byte-level BPE are in the byte alphabet
/// (common/formats/byte_alphabet.h).
struct TokenizerDefinition {
  TokenizerKind kind = TokenizerKind::kByteBpe;
  std::vector<std::string> tokens;  ///< By id; "" where an id is not used.
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  SequenceForm form;       ///< Around a single text.
  SequenceForm pair_form;  ///< Around two; `middle` is empty when the file does not say.

  // Byte-level BPE.
  std::vector<std::pair<std::string, std::string>> merges;  ///< By rank.
  SplitPattern pattern = SplitPattern::kGpt2;
  bool add_prefix_space = false;  ///< A space goes before text that begins without one.
  bool ignore_merges = false;     ///< A piece that is a token is never built by merging.

  // WordPiece and Unigram.
  std::vector<WordSplit> splits;
  std::string unknown_token;  ///< Of WordPiece.
  std::string subword_prefix = "##";
  size_t max_word_characters = 100;
  std::vector<double> scores;  ///< Of Unigram, by id.
  int32_t unknown_id = -1;
  bool byte_fallback = false;
  bool single_precision = false;     ///< Sums of scores are kept as float, as SentencePiece does.
  std::vector<int32_t> not_in_text;  ///< Ids that no text gives, beside the special tokens.
};

inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// Reads a tokenizer.json (version 1.0): byte-level BPE (pre-tokenizer ByteLevel, or Split by a
/// known pattern and then ByteLevel; merges as strings or as pairs), WordPiece and Unigram, with
/// the normalizers, word splitters and post-processors that docs/formats.md lists. Truncation and
/// padding are skipped. kInvalid names the part that is malformed or not supported.
Result<TokenizerDefinition> ParseTokenizerJson(std::string_view text);

/// Reads the two files of GPT-2's release: vocab.json (token to id) and merges.txt.
/// "<|endoftext|>" becomes a special token when the vocabulary has it.
Result<TokenizerDefinition> ParseVocabAndMerges(std::string_view vocab_json,
                                                std::string_view merges_text);

/// The tokenizer.json of a byte-level BPE without normalizer. ParseTokenizerJson and Python's
/// `tokenizers` read it.
std::string WriteTokenizerJson(const TokenizerDefinition& definition);

}  // namespace weft
