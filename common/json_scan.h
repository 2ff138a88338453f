#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace weft {

// Finds where the values of JSON text are without reading them: what a reader does not ask for need
// not be JSON that ParseJson takes (NaN, Infinity, 1e999, lone surrogates), as long as its quotes
// and brackets match. Time and memory are linear in the text, whatever it holds.

/// A member of an object, as it is written.
struct JsonMember {
  std::string_view key;    ///< With its quotes.
  std::string_view value;  ///< Without white space around it.
};

/// The text of the value that begins at `at`; moves `at` to its end. kInvalid: none begins there,
/// or its quotes or brackets do not match.
Result<std::string_view> ScanJsonValue(std::string_view text, size_t& at);

/// Moves `at` over white space.
void SkipJsonSpace(std::string_view text, size_t& at);

/// The members of the object that is all of `text`. kInvalid: it is none.
Result<std::vector<JsonMember>> ScanJsonObject(std::string_view text);

/// The elements of the array that is all of `text`. kInvalid: it is none.
Result<std::vector<std::string_view>> ScanJsonArray(std::string_view text);

/// The key that a member's `key` spells; the text between its quotes when that is no JSON string.
std::string JsonKeyName(std::string_view key);

/// The line, from 1, on which each value of `text` begins, by field path ("train.steps",
/// "data.train[0]"); values that are nested deeper than `depth` are left out. `text` is JSON.
std::map<std::string, int> JsonLines(std::string_view text, int depth);

}  // namespace weft
