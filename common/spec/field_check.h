#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft {

/// The member of `known` nearest to `name` by edit distance, or "" when none is near.
std::string NearestName(const std::string& name, const std::vector<std::string>& known);

namespace internal {

// What a field allows, and the errors that say so: the same whatever a spec is read from.

std::string NumberText(double value);
/// "1 to 10", "fp32 | bf16"; "" when anything goes.
std::string LegalText(const Field& field);

bool IsChoice(const Field& field, std::string_view value);
/// Of a number, or of the length of a string or list.
bool IsInRange(const Field& field, double value);

// The value at `place` is wrong.
Status ChoiceError(const Field& field, const std::string& value, const std::string& place);
Status RangeError(const Field& field, double value, const std::string& place);
/// `what` is counted: "items".
Status LengthError(const Field& field, size_t length, const char* what, const std::string& place);
/// The object at `parent`, which may be empty, is without the required field at `path`.
Status MissingError(const Field& field, const std::string& parent, const std::string& path);

}  // namespace internal
}  // namespace weft
