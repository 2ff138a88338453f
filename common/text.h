#pragma once

#include <string>
#include <string_view>

namespace weft {

/// Text from outside as part of a message: at most `limit` bytes ("..." at the end when cut), valid
/// UTF-8 and on one line. Bytes that are not UTF-8 and control characters become '?'.
std::string ClipText(std::string_view text, size_t limit = 80);

/// `text` with the letters A to Z in lower case and all other bytes as they are.
std::string AsciiLowerCase(std::string_view text);

/// `value` as printf writes it with `format`, which has one conversion of a double and makes less
/// than 64 characters of it.
std::string FormatNumber(const char* format, double value);

}  // namespace weft
