#pragma once

#include <string>
#include <string_view>

#include "common/json.h"

namespace weft {

/// Parses one YAML document (YAML 1.2 core schema: quoted scalars are strings; true/false, null,
/// integers and floats are recognised) into JSON with line numbers. Also reads JSON. Refuses
/// several documents, duplicate and non-string keys, aliases nested into huge values, bad syntax.
/// `source` names the text in errors.
Result<Document> ParseYaml(std::string_view text, const std::string& source);

/// JSON as block YAML that ParseYaml reads back to the same value.
std::string ToYaml(const Json& value);

}  // namespace weft
