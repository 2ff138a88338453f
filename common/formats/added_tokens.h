#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/byte_trie.h"

namespace weft {

/// What happens to the spelling of a special token in a text.
enum class SpecialTokens : uint8_t {
  kAsText,   ///< Plain text: users' documents must not be able to inject control tokens.
  kAsTokens  ///< The token, for trusted text.
};

/// A token that is not in the model.
struct AddedToken {
  int32_t id = 0;
  std::string content;       ///< As it is spelt in text.
  bool special = false;      ///< Means control (end of text, ...): never read from a user's text.
  bool normalized = false;   ///< Its normalized spelling is looked for in normalized text.
  bool lstrip = false;       ///< Takes the spaces before it.
  bool rstrip = false;       ///< Takes the spaces after it.
  bool single_word = false;  ///< Not within a word.

  bool operator==(const AddedToken&) const = default;
};

/// The longest spelling of an added token.
inline constexpr size_t kLongestAddedToken = 4096;

/// Added tokens that are looked for at the same time.
class AddedTokens {
 public:
  /// `spelling`: what to look for, not empty; the last of tokens spelt alike is found.
  void Add(const AddedToken& token, std::string_view spelling);

  /// Calls `plain(text, at_start)` for what is between the tokens, in order, and `found(id)` for
  /// these: from left to right the longest. A special token that is to stay text is passed over as
  /// a whole, as the reference implementation does.
  template <class Plain, class Found>
  void Split(std::string_view text, SpecialTokens special, Plain&& plain, Found&& found) const {
    size_t start = 0;
    for (size_t at = 0; at < text.size() && !IsIdle(special);) {
      const auto [index, size] = trie_.Longest(text.substr(at));
      if (size == 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(index)];
      const size_t stop = at + size;
      if (IsToken(token, text, at, stop, special)) {
        plain(text.substr(start, PlainEnd(token, text, start, at) - start), start == 0);
        found(token.id);
        start = NextStart(token, text, stop);
      }
      at = std::max(stop, start);
    }
    plain(text.substr(start), start == 0);
  }

  /// No text holds one but those of special tokens.
  bool only_special() const { return only_special_; }

 private:
  bool IsIdle(SpecialTokens special) const {
    return tokens_.empty() || (only_special_ && special == SpecialTokens::kAsText);
  }
  static bool IsToken(const AddedToken& token, std::string_view text, size_t begin, size_t end,
                      SpecialTokens special);
  static size_t PlainEnd(const AddedToken& token, std::string_view text, size_t start, size_t at);
  static size_t NextStart(const AddedToken& token, std::string_view text, size_t at);

  ByteTrie trie_;
  std::vector<AddedToken> tokens_;
  bool only_special_ = true;
};

}  // namespace weft
