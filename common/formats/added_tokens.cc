#include "common/formats/added_tokens.h"

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

/// Where the character that ends before `end` begins.
size_t CharacterBefore(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return static_cast<size_t>(ReadUtf8(text, at).bytes) == end - at ? at : end - 1;
}

}  // namespace

void AddedTokens::Add(const AddedToken& token, std::string_view spelling) {
  trie_.Add(spelling, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
  only_special_ &= token.special;
}

bool AddedTokens::IsToken(const AddedToken& token, std::string_view text, size_t begin, size_t end,
                          SpecialTokens special) {
  if (token.special && special == SpecialTokens::kAsText) return false;
  if (!token.single_word) return true;
  const bool after_word =
      begin > 0 && IsUnicodeWord(ReadUtf8(text, CharacterBefore(text, begin)).code);
  const bool before_word = end < text.size() && IsUnicodeWord(ReadUtf8(text, end).code);
  return !after_word && !before_word;
}

size_t AddedTokens::PlainEnd(const AddedToken& token, std::string_view text, size_t start,
                             size_t at) {
  while (token.lstrip && at > start) {
    const size_t before = CharacterBefore(text, at);
    if (!IsUnicodeSpace(ReadUtf8(text, before).code)) break;
    at = before;
  }
  return at;
}

size_t AddedTokens::NextStart(const AddedToken& token, std::string_view text, size_t at) {
  while (token.rstrip && at < text.size()) {
    const Utf8Char c = ReadUtf8(text, at);
    if (!IsUnicodeSpace(c.code)) break;
    at += static_cast<size_t>(c.bytes);
  }
  return at;
}

}  // namespace weft
