#include "common/text.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace weft {
namespace {

/// Length of the UTF-8 character at the start of `text` (RFC 3629), 0 when there is none.
size_t CharacterLength(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  uint8_t second = byte(1);
  bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  bool surrogate = first == 0xed && second > 0x9f;
  bool too_large = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

std::string ClipText(std::string_view text, size_t limit) {
  std::string out;
  bool whole = text.size() <= limit;
  size_t room = whole || limit < 3 ? limit : limit - 3;
  for (size_t i = 0; i < text.size();) {
    size_t length = CharacterLength(text.substr(i));
    auto first = static_cast<uint8_t>(text[i]);
    bool printable = length > 1 || (length == 1 && first >= 0x20 && first != 0x7f);
    if (out.size() + (printable ? length : 1) > room) break;
    if (printable) {
      out += text.substr(i, length);
    } else {
      out += '?';
    }
    i += printable ? length : 1;
  }
  return whole ? out : out + "...";
}

std::string AsciiLowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string FormatNumber(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace weft
