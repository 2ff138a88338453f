#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/formats/utf8.h"

namespace weft {

/// The alphabet in which byte-level tokenizers write bytes as printable characters (GPT-2): bytes
/// 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for the code point of the same number, the other 68 in
/// ascending order for U+0100 and on.
inline constexpr std::array<char32_t, 256> kByteAlphabet = [] {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}();

/// Bytes written in the alphabet.
inline std::string BytesToAlphabet(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) AppendUtf8(text, kByteAlphabet[static_cast<unsigned char>(byte)]);
  return text;
}

/// The bytes that `text` writes; nothing when it has a character outside the alphabet.
inline std::optional<std::string> AlphabetToBytes(std::string_view text) {
  static constexpr std::array<int16_t, 0x144> kInverse = [] {
    std::array<int16_t, 0x144> inverse{};
    inverse.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) {
      inverse[kByteAlphabet[byte]] = static_cast<int16_t>(byte);
    }
    return inverse;
  }();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    Utf8Char c = ReadUtf8(text, at);
    if (!c.valid || c.code >= kInverse.size() || kInverse[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kInverse[c.code]);
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

}  // namespace weft
