#pragma once

#include <string>
#include <string_view>

namespace weft {

/// A message of a Status in its two parts: what was wrong, and after "hint:" what to do about it.
struct MessageParts {
  std::string text;
  std::string hint;  ///< Empty where there is none.
};

inline MessageParts SplitHint(std::string_view message) {
  constexpr std::string_view kMark = "hint: ";
  const size_t at = message.find(kMark);
  if (at == std::string_view::npos) return {std::string(message), ""};
  std::string_view text = message.substr(0, at);
  while (text.ends_with(' ') || text.ends_with(';')) text.remove_suffix(1);
  return {std::string(text), std::string(message.substr(at + kMark.size()))};
}

}  // namespace weft
