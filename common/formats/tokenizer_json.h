#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/added_tokens.h"
#include "common/formats/sequence_form.h"
#include "common/formats/text_normalizer.h"
#include "common/formats/word_splitter.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

enum class TokenizerKind : uint8_t { kBpe, kWordPiece, kUnigram };

/// How pieces that are written in characters become text again.
struct PieceSpelling {
  std::string metaspace;         ///< Stands for a space; "" for none.
  bool drop_first_space = true;  ///< The space that a text begins with was put there.
  bool spaces_between = false;   ///< Pieces are words of their own.
};

/// A tokenizer as its files describe it. Strings of byte-level BPE are in the byte alphabet
/// (common/formats/byte_alphabet.h).
struct TokenizerDefinition {
  TokenizerKind kind = TokenizerKind::kBpe;
  std::vector<std::string> tokens;  ///< By id; "" where an id is not used.
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<WordSplit> splits;
  SequenceForm form;          ///< What the file puts around a single text.
  SequenceForm pair_form;     ///< Around two; `middle` is empty when the file does not say.
  bool has_template = false;  ///< The file says what comes around texts.
  std::string unknown_token;  ///< Of WordPiece, and of BPE that has one.
  bool byte_fallback = false;
  PieceSpelling spelling;  ///< Of Unigram and of BPE over characters.

  // BPE.
  bool byte_level = true;                                   ///< Otherwise over characters.
  std::vector<std::pair<std::string, std::string>> merges;  ///< By rank.
  bool ignore_merges = false;  ///< A piece that is a token is never built by merging.
  bool fuse_unknown = false;   ///< Unknown characters in a row are one unknown token.

  // WordPiece.
  std::string subword_prefix = "##";
  size_t max_word_characters = 100;

  // Unigram.
  std::vector<double> scores;        ///< By id.
  int32_t unknown_id = -1;           ///< -1: texts with unknown characters are refused.
  bool single_precision = false;     ///< Sums of scores are kept as float, as SentencePiece does.
  std::vector<int32_t> not_in_text;  ///< Ids that no text gives, besides the special tokens.
};

inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// Reads a tokenizer.json (version 1.0): BPE over bytes and over characters, WordPiece and Unigram,
/// with the normalizers, word splitters and post-processors that docs/formats.md lists. Truncation
/// and padding are skipped. kInvalid names the part that is malformed, or not supported
/// (FailureKind::kUnsupported).
Result<TokenizerDefinition> ParseTokenizerJson(std::string_view text);

/// The step that cuts text as GPT-2 does.
WordSplit Gpt2Split();

/// The tokenizer.json of a byte-level BPE that has no normalizer but NFC and is split by regular
/// expressions. ParseTokenizerJson and Python's `tokenizers` read it.
std::string WriteTokenizerJson(const TokenizerDefinition& definition);

namespace tokenizer_json {

/// Reads a "vocab" of tokens and ids.
Status ReadVocabulary(const Json& vocab, std::vector<std::string>& tokens);

/// Adds a line of merges.txt, two tokens with a space between.
Status AddMerge(std::string_view line, TokenizerDefinition& definition);

/// The TemplateProcessing that puts these tokens around a text, and around two. `spelling` gives
/// the token of an id.
Json TemplateJson(const SequenceForm& single, const SequenceForm& pair,
                  const std::function<std::string(int64_t)>& spelling);

/// The entry of "added_tokens" for a token.
Json AddedTokenJson(const AddedToken& token);

/// Reads an entry of "added_tokens" without its id.
Result<AddedToken> ReadAddedToken(const Json& json);

}  // namespace tokenizer_json

}  // namespace weft
