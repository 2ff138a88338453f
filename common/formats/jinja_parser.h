#pragma once

#include <string_view>

#include "common/formats/jinja_syntax.h"
#include "common/status.h"

namespace weft::jinja {

/// Parses a template. kInvalid, with the line: what is no Jinja, a statement, filter or test that
/// is not supported, or nesting past a limit.
Result<Body> ParseTemplate(std::string_view source);

}  // namespace weft::jinja
