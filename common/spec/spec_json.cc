#include "common/spec/spec_json.h"

#include <algorithm>
#include <charconv>

#include "common/text.h"

namespace weft {
namespace {

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string Hint(const std::string& nearest) {
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace

std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  std::string nearest;
  if (name.size() > 256) return nearest;
  size_t best = std::max<size_t>(name.size() / 2, 2) + 1;
  for (const std::string& candidate : known) {
    size_t distance = EditDistance(name, candidate);
    // "warmup" for "warmup_steps": a part of the name is near whatever its length.
    if (candidate.size() > 3 && name.size() > 3 &&
        (candidate.find(name) != std::string::npos || name.find(candidate) != std::string::npos)) {
      distance = std::min<size_t>(distance, 2);
    }
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

namespace internal {

std::string NumberText(double value) {
  if (std::nearbyint(value) == value && std::fabs(value) < 1e15) {
    return std::to_string(static_cast<int64_t>(value));
  }
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end);
}

std::string LegalText(const Field& field) {
  if (!field.choices.empty()) {
    std::string text;
    for (std::string_view choice : field.choices) {
      text += (text.empty() ? "" : " | ") + std::string(choice);
    }
    return text;
  }
  bool low = std::isfinite(field.min), high = std::isfinite(field.max);
  if (low && high) return NumberText(field.min) + " to " + NumberText(field.max);
  if (low) return "at least " + NumberText(field.min);
  if (high) return "at most " + NumberText(field.max);
  return "";
}

std::string JsonTypeText(const Json& json) {
  std::string text = json.is_structured()
                         ? ""
                         : ClipText(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  switch (json.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "the string " + text;
    case Json::value_t::boolean:
      return "the boolean " + text;
    default:
      return "the number " + text;
  }
}

Status Reader::WrongType(const std::string& wanted, const Json& json, const std::string& path) {
  const bool vowel = wanted == "integer" || wanted == "object";
  return InvalidError(document_.Locate(path) + " must be " + (vowel ? "an " : "a ") + wanted +
                      ", not " + JsonTypeText(json));
}

const Json* Reader::Next(ReadObject& object, const Field& field) {
  object.known.push_back(field.name);
  const auto at = object.json.find(field.name);
  if (at != object.json.end()) ++object.found;
  if (!object.status.ok()) return nullptr;
  object.child.assign(object.path);
  if (!object.child.empty()) object.child += '.';
  object.child += field.name;
  if (at != object.json.end()) return &*at;
  if (field.required) object.status = Missing(field, object.path, object.child);
  return nullptr;
}

Status Reader::Close(const ReadObject& object) {
  if (object.found == object.json.size()) return object.status;
  for (const auto& [key, child] : object.json.items()) {
    if (std::find(object.known.begin(), object.known.end(), key) == object.known.end()) {
      return UnknownField(key, object.path, object.known);
    }
  }
  return object.status;
}

Status Reader::Missing(const Field& field, const std::string& parent, const std::string& path) {
  std::string place = document_.Locate(parent);
  return InvalidError((place.empty() ? "" : place + ": ") + "required field " + path +
                      " is missing: " + std::string(field.doc));
}

Status Reader::UnknownField(const std::string& key, const std::string& parent,
                            const std::vector<std::string_view>& known) {
  std::string path = parent.empty() ? key : parent + "." + key;
  const std::vector<std::string> names(known.begin(), known.end());
  std::string nearest = NearestName(key, names);
  std::string text = document_.Locate(path) + " is not a known field";
  if (!nearest.empty()) return InvalidError(text + Hint(nearest));
  text += "; known here:";
  for (const std::string& name : names) text += " " + name;
  return InvalidError(text);
}

Status Reader::CheckChoice(const Field& field, const std::string& value, const std::string& path) {
  if (std::find(field.choices.begin(), field.choices.end(), value) != field.choices.end()) {
    return OkStatus();
  }
  const std::vector<std::string> legal(field.choices.begin(), field.choices.end());
  return InvalidError(document_.Locate(path) + " is '" + ClipText(value) +
                      "', but must be one of " + LegalText(field) +
                      Hint(NearestName(value, legal)));
}

Status Reader::CheckRange(const Field& field, double value, const std::string& path) {
  if (value >= field.min && value <= field.max) return OkStatus();
  std::string legal = LegalText(field);
  if (legal.empty()) {
    legal = "a number";
  } else if (!field.unit.empty()) {
    legal += " " + std::string(field.unit);
  }
  return InvalidError(document_.Locate(path) + " is " + NumberText(value) + ", but must be " +
                      legal);
}

Status Reader::CheckLength(const Field& field, size_t length, const char* what,
                           const std::string& path) {
  auto count = static_cast<double>(length);
  if (count >= field.min && count <= field.max) return OkStatus();
  return InvalidError(document_.Locate(path) + " has " + std::to_string(length) + " " + what +
                      ", but must have " + LegalText(field));
}

}  // namespace internal
}  // namespace weft
