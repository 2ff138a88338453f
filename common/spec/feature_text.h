#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::features {

/// "field value": how a message shows what a job asks for.
inline std::string Shown(std::string_view field, int64_t value) {
  return std::string(field) + " " + std::to_string(value);
}
inline std::string Shown(std::string_view field, const std::string& value) {
  return std::string(field) + " " + value;
}

}  // namespace weft::features
