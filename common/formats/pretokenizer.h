#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

/// Well-known ways to cut text into the pieces that byte-pair merges never cross, for which there
/// is hand-written code that is faster than a regular expression.
enum class SplitPattern : uint8_t {
  /// GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  /// cl100k and Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  /// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kCl100k,
  kQwen2,  ///< The same with \p{N} in place of \p{N}{1,3}: each digit is a piece.
};

/// The pattern that a regular expression of a tokenizer.json means; nothing for others.
std::optional<SplitPattern> PatternOfRegex(std::string_view regex);

/// The regular expression of a pattern.
std::string_view RegexOfPattern(SplitPattern pattern);

/// Length in bytes of the first piece of `text`, 0 only for empty text. The pieces, taken one after
/// another, make up the text. An invalid UTF-8 byte counts as one character that is neither letter,
/// number nor space. `text` must reach to the end of its document or to a place where a piece is
/// known to begin, for the patterns look ahead.
size_t NextPiece(SplitPattern pattern, std::string_view text);

}  // namespace weft
