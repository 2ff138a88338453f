#include "common/json.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

#include "common/text.h"

namespace weft {
namespace {

/// What JSON text holds, without reading its values.
struct JsonShape {
  int depth = 0;       ///< Of the innermost object or list.
  size_t members = 0;  ///< Of all its objects, also those whose keys repeat.
};

JsonShape ShapeOf(std::string_view text) {
  JsonShape shape;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (in_string) {
      if (byte == '\\') ++i;
      in_string = byte != '"';
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      shape.depth = std::max(shape.depth, ++depth);
    } else if (byte == '}' || byte == ']') {
      --depth;
    } else if (byte == ':') {
      ++shape.members;
    }
  }
  return shape;
}

size_t CountMembers(const Json& value) {
  size_t count = value.is_object() ? value.size() : 0;
  if (value.is_structured()) {
    for (const Json& inner : value) count += CountMembers(inner);
  }
  return count;
}

/// A key that an object of `text` has twice, of the one that ends first.
std::string RepeatedKey(std::string_view text) {
  std::vector<std::vector<std::string>> keys;  // of the objects that are open
  std::string repeated;
  const auto note = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::key) {
      keys.back().push_back(value.get<std::string>());
    } else if (event == Json::parse_event_t::object_end) {
      std::sort(keys.back().begin(), keys.back().end());
      const auto twice = std::adjacent_find(keys.back().begin(), keys.back().end());
      if (twice != keys.back().end() && repeated.empty()) repeated = *twice;
      keys.pop_back();
    }
    return true;
  };
  [[maybe_unused]] const Json parsed = Json::parse(text.begin(), text.end(), note);
  return repeated;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return InvalidError("JSON of " + std::to_string(text.size()) + " bytes; at most " +
                        std::to_string(limits.bytes) + " are accepted");
  }
  if (text.find('\0') != std::string_view::npos) {  // the parser would take it for the end
    return InvalidError("not valid JSON: it holds a NUL byte");
  }
  const JsonShape shape = ShapeOf(text);
  if (shape.depth > limits.depth) {
    return InvalidError("JSON is nested deeper than " + std::to_string(limits.depth) + " levels");
  }
  try {
    Json value = Json::parse(text.begin(), text.end());
    // The parser keeps one of each key.
    if (CountMembers(value) < shape.members) {
      return InvalidError("JSON repeats the key \"" + ClipText(RepeatedKey(text)) + "\"");
    }
    return value;
  } catch (const Json::exception& e) {
    // nlohmann's text is "[json.exception...] parse error at line 1, column 2: reason".
    std::string_view what = e.what();
    if (size_t bracket = what.find("] "); bracket != std::string_view::npos) {
      what.remove_prefix(bracket + 2);
    }
    return InvalidError("not valid JSON: " + ClipText(what, 200));
  }
}

std::string Quoted(std::string_view text, size_t limit) {
  const std::string json =
      Json(std::string(text.substr(0, limit))).dump(-1, ' ', false, Json::error_handler_t::replace);
  // DEL and those of U+0080 to U+009F, which JSON may hold as they are.
  std::string quoted;
  for (size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const auto next = static_cast<unsigned char>(i + 1 < json.size() ? json[i + 1] : 0);
    if (byte == 0x7f) {
      quoted += "\\u007f";
    } else if (byte == 0xc2 && next < 0xa0) {
      quoted += std::string("\\u00") + (next < 0x90 ? '8' : '9') + "0123456789abcdef"[next % 16];
      ++i;
    } else {
      quoted += json[i];
    }
  }
  return quoted;
}

void AppendJsonString(std::string_view string, std::string& text) {
  const bool plain = std::all_of(string.begin(), string.end(), [](char each) {
    return each >= ' ' && each < 0x7f && each != '"' && each != '\\';
  });
  if (plain) {
    text += '"';
    text += string;
    text += '"';
  } else {
    text += Json(std::string(string)).dump();
  }
}

void AppendJsonNumber(double number, std::string& text) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
  }
  char digits[32];
  char* const end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  text.append(&digits[0], end);
  // Without a point or an exponent it would read as an integer.
  if (std::all_of(&digits[0], end,
                  [](char each) { return each == '-' || std::isdigit(each) != 0; })) {
    text += ".0";
  }
}

void AppendJsonNumber(int64_t number, std::string& text) {
  text += std::to_string(number);
}

std::string Document::Locate(const std::string& path) const {
  std::string place = source;
  if (auto it = lines.find(path); it != lines.end()) {
    if (!place.empty()) place += ':';
    place += std::to_string(it->second);
  }
  if (!place.empty() && !path.empty()) place += ": ";
  return place + ClipText(path, 120);
}

}  // namespace weft
