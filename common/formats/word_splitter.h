#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/split_regex.h"
#include "common/status.h"

namespace weft {

/// One step of how text is cut into the words that a model sees one by one.
struct WordSplit {
  enum class Kind : uint8_t {
    kBert,             ///< At spaces, which go, and around each punctuation character.
    kWhitespace,       ///< Runs of \w, and runs of what is neither \w nor a space.
    kWhitespaceSplit,  ///< At spaces, which go.
    kPunctuation,      ///< At punctuation characters, as `behavior` says.
    kDigits,           ///< Around runs of numbers.
    kEachDigit,        ///< Around each number.
    kMetaspace,        ///< Spaces become `metaspace`, which begins a word.
    kRegex,            ///< At matches of `regex`, as `behavior` says.
    kString,           ///< At each `delimiter`, as `behavior` says.
    kPrefixSpace,      ///< Not cut; a space goes before text that does not begin with one.
  };
  /// When a word that does not begin with the metaspace gets one put before it.
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  /// What becomes of matches and of what is between them.
  enum class Behavior : uint8_t {
    kRemoved,             ///< Matches go.
    kIsolated,            ///< Each is a word.
    kMergedWithPrevious,  ///< A match ends the word before it.
    kMergedWithNext,      ///< A match begins the word after it.
    kContiguous,          ///< Matches in a row are a word.
  };

  Kind kind = Kind::kBert;
  Prepend prepend = Prepend::kAlways;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;                     ///< Matches are what is between the matches.
  bool split = true;                       ///< Metaspace: cut at all.
  std::string metaspace = "\xe2\x96\x81";  ///< U+2581
  std::string delimiter = {};
  std::optional<SplitRegex> regex = {};
};

/// Calls `each` for the words of `text` after all steps, empty ones left out. `at_start`: it
/// begins its document. kInvalid as SplitRegex::ForEach.
Status SplitWords(std::span<const WordSplit> steps, std::string_view text, bool at_start,
                  const std::function<void(std::string_view)>& each);

/// Text may be cut between a letter and a space without changing the words of the two parts.
bool CutsAtSpaces(const std::vector<WordSplit>& steps);

}  // namespace weft
