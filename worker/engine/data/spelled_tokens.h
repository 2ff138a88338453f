#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/tokenizer.h"

namespace weft::engine {

/// Special tokens of a tokenizer as they are spelled ("<|endoftext|>"). Immutable, so thread-safe.
class SpelledTokens {
 public:
  explicit SpelledTokens(const Tokenizer& tokenizer);

  /// How many of them `text` spells out; `example` gets the first when it is empty.
  uint64_t Count(std::string_view text, std::string& example) const;

  /// Whether a text may be cut between a letter and a space without cutting one of them, or what
  /// one takes of the spaces around it.
  bool MayCutAtSpaces() const { return may_cut_; }

 private:
  std::array<std::vector<std::string>, 256> by_first_byte_;
  bool may_cut_ = true;
};

}  // namespace weft::engine
