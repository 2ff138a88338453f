#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/formats/pretokenizer.h"
#include "common/status.h"

namespace weft {

/// A regular expression of a tokenizer, which finds places in texts. Copies share the compiled
/// form. Immutable, so thread-safe.
class SplitRegex {
 public:
  /// Compiles a pattern in the syntax of tokenizer.json (common/formats/regex_dialect.h). kInvalid
  /// says what is wrong with it, and where.
  static Result<SplitRegex> Compile(std::string_view regex);

  /// Calls `each(piece, is_match)` for the matches in `text` and for what is between them, in
  /// order; together they are the text. A match may be empty. An invalid UTF-8 byte counts as one
  /// U+FFFD. kInvalid: matching takes more than kMostSteps steps or kMostKibibytes of memory.
  Status ForEach(std::string_view text,
                 const std::function<void(std::string_view, bool)>& each) const;

  const std::string& regex() const { return regex_; }

  /// Every match and gap ends between an ASCII letter and a space, whatever is around; known for
  /// the patterns of well-known tokenizers alone.
  bool cuts_at_spaces() const { return cuts_at_spaces_; }

  /// This pattern, run by PCRE2 even where there is a faster way.
  SplitRegex WithoutShortcut() const;

  /// The pattern of GPT-4o (o200k).
  static constexpr std::string_view kO200k =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
      R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
      R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

  static constexpr uint32_t kMostSteps = 10'000'000;
  static constexpr uint32_t kMostKibibytes = 64 * 1024;

 private:
  class Compiled;

  Status Match(std::string_view valid, std::string_view text, const size_t* offsets,
               const std::function<void(std::string_view, bool)>& each) const;

  std::string regex_;
  std::optional<SplitPattern> known_;  ///< Cut by hand-written code.
  bool cuts_at_spaces_ = false;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace weft
