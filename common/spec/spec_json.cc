#include "common/spec/spec_json.h"

#include <algorithm>

#include "common/text.h"

namespace weft {
namespace internal {

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
  if (field.required) {
    object.status = MissingError(field, document_.Locate(object.path), object.child);
  }
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

Status Reader::UnknownField(const std::string& key, const std::string& parent,
                            const std::vector<std::string_view>& known) {
  std::string path = parent.empty() ? key : parent + "." + key;
  const std::vector<std::string> names(known.begin(), known.end());
  std::string nearest = NearestName(key, names);
  std::string text = document_.Locate(path) + " is not a known field";
  if (!nearest.empty()) return InvalidError(text + "; did you mean '" + nearest + "'?");
  text += "; known here:";
  for (const std::string& name : names) text += " " + name;
  return InvalidError(text);
}

Status Reader::CheckRange(const Field& field, double value, const std::string& path) {
  if (IsInRange(field, value)) return OkStatus();
  return RangeError(field, value, document_.Locate(path));
}

Status Reader::CheckLength(const Field& field, size_t length, const char* what,
                           const std::string& path) {
  if (IsInRange(field, static_cast<double>(length))) return OkStatus();
  return LengthError(field, length, what, document_.Locate(path));
}

}  // namespace internal
}  // namespace weft
