#pragma once

#include <string>
#include <string_view>

namespace weft {

/// SHA-256 (FIPS 180-4) of bytes, as 64 lower-case hex digits: the name by which others publish
/// files.
std::string Sha256Hex(std::string_view bytes);

}  // namespace weft
