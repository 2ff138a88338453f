#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// One step of how text is cut into words before a WordPiece or Unigram model sees them.
struct WordSplit {
  enum class Kind : uint8_t {
    kBert,             ///< At spaces, which go, and around each punctuation character.
    kWhitespace,       ///< Runs of \w, and runs of what is neither \w nor a space.
    kWhitespaceSplit,  ///< At spaces, which go.
    kPunctuation,      ///< Around each punctuation character.
    kDigits,           ///< Around runs of numbers.
    kEachDigit,        ///< Around each number.
    kMetaspace,        ///< Spaces become `metaspace`, which begins a word.
  };
  /// When a word that does not begin with the metaspace gets one put before it.
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };

  Kind kind = Kind::kBert;
  Prepend prepend = Prepend::kAlways;
  bool split = true;                       ///< Metaspace: cut at all.
  std::string metaspace = "\xe2\x96\x81";  ///< U+2581
};

/// The words of `text` after all steps, empty ones left out. `at_start`: it begins its document.
std::vector<std::string> SplitWords(const std::vector<WordSplit>& steps, std::string_view text,
                                    bool at_start);

}  // namespace weft
