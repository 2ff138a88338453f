#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft {

/// One code point read from text.
struct Utf8Char {
  char32_t code = 0;
  int bytes = 1;       ///< Length in the text, at least 1.
  bool valid = false;  ///< Otherwise `code` is U+FFFD and `bytes` 1.
};

/// Reads the code point at `text[at]`, at < text.size(). Strict: overlong forms, surrogates, values
/// past U+10FFFF and cut sequences are invalid, one byte at a time.
inline Utf8Char ReadUtf8(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const int length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < static_cast<size_t>(length)) {
    return {0xfffd, 1, false};
  }
  char32_t code = lead & (0x7fu >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {0xfffd, 1, false};
    code = code << 6 | (byte(i) & 0x3f);
  }
  if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    return {0xfffd, 1, false};
  }
  return {code, length, true};
}

/// Bytes of `text` that are not part of a valid code point.
inline size_t CountInvalidUtf8(std::string_view text) {
  size_t invalid = 0;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Char c = ReadUtf8(text, at);
    invalid += c.valid ? 0 : 1;
    at += static_cast<size_t>(c.bytes);
  }
  return invalid;
}

/// Appends a code point up to U+10FFFF.
inline void AppendUtf8(std::string& text, char32_t code) {
  auto add = [&](char32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

}  // namespace weft
