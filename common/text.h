#pragma once

#include <string>
#include <string_view>

namespace weft {

/// Text from outside as part of a message: at most `limit` bytes ("..." at the end when cut), valid
/// UTF-8 and on one line. Bytes that are not UTF-8 and control characters become '?'.
std::string ClipText(std::string_view text, size_t limit = 80);

}  // namespace weft
