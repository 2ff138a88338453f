#pragma once

#include <string_view>

namespace weft {

/// Prints the broken invariant with its place to stderr and aborts the process.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace weft

/// Aborts when an invariant of Weft's own code is broken. Never for bad input: that is a Status.
#define WEFT_CHECK(condition, message)                                              \
  do {                                                                              \
    if (!(condition)) ::weft::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
