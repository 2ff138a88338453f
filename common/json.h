#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status.h"

namespace weft {

using Json = nlohmann::json;

/// Bounds on hostile input.
struct JsonLimits {
  size_t bytes = size_t{64} << 20;
  int depth = 64;
};

/// Parses one JSON value. Refuses with kInvalid: malformed text (with line and column), duplicate
/// keys, nesting past `limits.depth`, invalid UTF-8, anything after the value, too many bytes.
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

/// The first `limit` bytes of text from outside as a JSON string, for messages and logs: in quotes,
/// on one line, without control characters. Bytes that are not UTF-8 become U+FFFD.
std::string Quoted(std::string_view text, size_t limit = std::string_view::npos);

/// Appends `string`, which is UTF-8, to `text`, in quotes and escaped as JSON wants it.
void AppendJsonString(std::string_view string, std::string& text);
/// Appends the shortest number that reads as this one; null of one that is not finite.
void AppendJsonNumber(double number, std::string& text);
void AppendJsonNumber(int64_t number, std::string& text);

/// A configuration document: its value, and where each part of it is, for error messages.
struct Document {
  Json value;
  std::string source;                ///< File name, or "" when there is none.
  std::map<std::string, int> lines;  ///< Field path ("train.steps") to 1-based line; may be empty.

  /// "job.yaml:12: train.steps", or without what is unknown. Paths hold keys from
  /// outside: a long one is clipped.
  std::string Locate(const std::string& path) const;
};

}  // namespace weft
