#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace weft {

/// SentencePiece's compiled table of replacements (usually NFKC with some extras), as
/// tokenizer.json files carry it in base64: the size of a double-array trie in bytes (u32), the
/// trie (u32 units, the layout of Darts-clone), and the replacements, each ended by NUL. Immutable,
/// so thread-safe.
class Charsmap {
 public:
  /// kInvalid when the bytes are not such a table: every walk through the trie, also that of other
  /// readers, stays inside it, and every value inside the replacements.
  static Result<Charsmap> Parse(std::string_view bytes);

  /// The text with each grapheme cluster below 6 bytes replaced when it or its shortest known start
  /// has a replacement, and the code points of all others one by one.
  std::string Apply(std::string_view text) const;

  /// The replacement of the longest start of `text` that has one, and the length of this start; 0
  /// when there is none.
  std::pair<std::string_view, size_t> LongestMatch(std::string_view text) const;

 private:
  Status CheckWalks() const;
  std::optional<std::string_view> Replacement(std::string_view key) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// The bytes that base64 text means (standard alphabet, padded); nothing when it is malformed.
std::optional<std::string> DecodeBase64(std::string_view text);

/// Its inverse.
std::string EncodeBase64(std::string_view bytes);

}  // namespace weft
