#pragma once

#include <string>
#include <string_view>

namespace weft {

/// General categories and mappings of Unicode 15.0 that normalizers and word splitters need. Any
/// code point is accepted.
bool IsUnicodeSpace(char32_t code);        ///< White_Space.
bool IsUnicodePunctuation(char32_t code);  ///< Category P, or one of ASCII's other symbols.
bool IsUnicodeControl(char32_t code);      ///< Category C without tab, newline, carriage return.
bool IsUnicodeNumber(char32_t code);       ///< Category N.
bool IsUnicodeWord(char32_t code);         ///< What \w matches.
bool IsNonspacingMark(char32_t code);      ///< Category Mn.
bool IsCombiningMark(char32_t code);       ///< Category M.

/// Appends the lower-case form, of one or two code points, without regard to neighbours.
void AppendLowerCase(std::string& text, char32_t code);

/// Appends the upper-case form, of one code point except for the German sharp s.
void AppendUpperCase(std::string& text, char32_t code);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// The text in a normal form. Invalid UTF-8 bytes become U+FFFD.
std::string ToNormalForm(std::string_view text, NormalForm form);

/// Length in bytes of the grapheme cluster at the start of `text`, 0 for empty text.
size_t GraphemeLength(std::string_view text);

}  // namespace weft
