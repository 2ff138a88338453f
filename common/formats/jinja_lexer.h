#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace weft::jinja {

/// A token of a template.
struct Token {
  enum class Kind : uint8_t {
    kData,           ///< Text outside of the delimiters, white space control applied.
    kBlockBegin,     ///< {%
    kBlockEnd,       ///< %}
    kVariableBegin,  ///< {{
    kVariableEnd,    ///< }}
    kName,
    kString,    ///< Its value, escapes resolved.
    kInteger,   ///< Its digits.
    kFloat,     ///< As it is written, without underscores.
    kOperator,  ///< Punctuation.
    kEnd        ///< Of the template.
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

/// Cuts a template into tokens; kEnd is the last. White space goes as transformers has
/// Jinja do it: a line break after a block or comment is left out (trim_blocks), and so is the
/// white space before one that begins a line (lstrip_blocks); "-" and "+" in a delimiter change
/// that; one line break at the end of the template is left out. kInvalid, with the line: a
/// delimiter or string that is not closed, or a character that no expression has.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace weft::jinja
