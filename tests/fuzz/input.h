#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"

namespace weft::fuzz {

/// The bytes of an input as text.
inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes what comes before the first `end` off `text`, with the `end`; all of it without one.
inline std::string_view TakeUntil(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return part;
}

}  // namespace weft::fuzz

/// A fuzz target finds a crash: a condition that holds for every input.
#define WEFT_FUZZ_EXPECT(condition) WEFT_CHECK(condition, "an input breaks this")
