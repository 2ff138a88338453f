#pragma once

#include <string_view>

namespace weft {

/// Data of pairs of answers: a preferred one and another.
inline constexpr std::string_view kPreferenceFormat = "preference";

/// Whether data of this DataSpec::format are for instruction tuning: what is asked and what is
/// answered, in JSON.
inline bool IsInstructionFormat(std::string_view format) {
  return format == "chat" || format == "prompt_completion" || format == "alpaca" ||
         format == kPreferenceFormat;
}

}  // namespace weft
