#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// Whether `pattern`, a regular expression, describes the whole of `text`, as re.fullmatch of
/// Python. kInvalid where it is no regular expression, or finding out takes too long.
Result<bool> FullMatch(const std::string& pattern, std::string_view text);

}  // namespace weft
