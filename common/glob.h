#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft {

/// Whether `pattern` describes the whole of `text`; each * in it stands for any characters, also
/// none. Linear in the product of the lengths at worst.
bool GlobMatches(std::string_view pattern, std::string_view text);

/// Whether one of `patterns` does; of none, false.
bool MatchesAny(std::span<const std::string> patterns, std::string_view text);

}  // namespace weft
