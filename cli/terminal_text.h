#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace weft::cli {

/// Text of others for a terminal. Control characters, which could command it, become U+FFFD: the
/// bytes below 0x20 except newline and tab, 0x7f, and U+0080 to U+009F.
inline std::string ForTerminal(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool two_bytes = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    const bool one_byte = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    if (one_byte || two_bytes) {
      shown += "\xef\xbf\xbd";
    } else {
      shown += text[i];
    }
    if (two_bytes) ++i;
  }
  return shown;
}

/// The same for one line of a terminal or one cell of a table: newlines and tabs, which could make
/// further rows and columns, become spaces.
inline std::string ForOneLine(std::string_view text) {
  std::string shown = ForTerminal(text);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return shown;
}

}  // namespace weft::cli
