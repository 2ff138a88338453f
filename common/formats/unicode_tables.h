#pragma once

#include <cstdint>

namespace weft {

/// What the tokenizers' patterns tell apart: \p{L}, \p{N}, \s (White_Space) and the rest.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

/// Class of a code point, Unicode 15.0. Any value is accepted.
CharClass ClassOf(char32_t code);

}  // namespace weft
