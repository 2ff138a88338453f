#include "common/formats/jinja_value.h"

#include <algorithm>

#include "common/formats/utf8.h"
#include "common/json_scan.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

/// Up to this many entries of a mapping are searched without an index.
constexpr size_t kFewEntries = 16;

template <class Get>
Status Measure(size_t count, const Get& value_at, int& depth, size_t& nodes) {
  for (size_t i = 0; i < count; ++i) {
    const Value& value = value_at(i);
    depth = std::max(depth, value.depth() + 1);
    nodes += value.nodes();
    if (nodes > Value::kMaxNodes) {
      return InvalidError("a list or mapping of more than " + std::to_string(Value::kMaxNodes) +
                          " values");
    }
  }
  if (depth <= Value::kMaxDepth) return OkStatus();
  return InvalidError("lists and mappings nested more than " + std::to_string(Value::kMaxDepth) +
                      " deep");
}

Result<Value> ReadJson(std::string_view text, int depth) {
  if (depth > Value::kMaxDepth) {
    return InvalidError("JSON is nested deeper than " + std::to_string(Value::kMaxDepth) +
                        " levels");
  }
  if (text.starts_with('[')) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string_view> elements, ScanJsonArray(text));
    std::vector<Value> items;
    for (std::string_view element : elements) {
      WEFT_ASSIGN_OR_RETURN(Value item, ReadJson(element, depth + 1));
      items.push_back(std::move(item));
    }
    return Value::Of(std::move(items));
  }
  if (text.starts_with('{')) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, ScanJsonObject(text));
    std::vector<std::pair<std::string, Value>> entries;
    for (const JsonMember& member : members) {
      WEFT_ASSIGN_OR_RETURN(const Json key, ParseJson(member.key));
      WEFT_ASSIGN_OR_RETURN(Value value, ReadJson(member.value, depth + 1));
      entries.emplace_back(key.get<std::string>(), std::move(value));
    }
    const size_t written = entries.size();
    WEFT_ASSIGN_OR_RETURN(Value mapping, Value::Of(std::move(entries)));
    if (mapping.mapping().entries.size() != written) {
      return InvalidError("a JSON object repeats a key");
    }
    return mapping;
  }
  WEFT_ASSIGN_OR_RETURN(const Json scalar, ParseJson(text));
  if (scalar.is_string()) return Value::String(scalar.get<std::string>());
  if (scalar.is_boolean()) return Value::Boolean(scalar.get<bool>());
  if (scalar.is_number_unsigned() && scalar.get<uint64_t>() > INT64_MAX) {
    return InvalidError("the number " + ClipText(text, 40) + " is too large");
  }
  if (scalar.is_number_integer()) return Value::Integer(scalar.get<int64_t>());
  if (scalar.is_number()) return Value::Float(scalar.get<double>());
  return Value();
}

bool EqualLists(const List& a, const List& b) {
  return a.tuple == b.tuple &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), Equal);
}

bool EqualMappings(const Mapping& a, const Mapping& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.Find(entry.first);
    return other != nullptr && Equal(entry.second, *other);
  });
}

}  // namespace

const Value* Mapping::Find(std::string_view key) const {
  if (!index.empty()) {
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value Value::Undefined(std::string what) {
  return Value(Missing{std::make_shared<const std::string>(std::move(what))});
}

Value Value::String(std::string text) {
  return Value(Text{std::make_shared<const std::string>(std::move(text))});
}

Value Value::Of(Function function) {
  return Value(std::make_shared<const Function>(std::move(function)));
}

Result<Value> Value::Of(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  WEFT_RETURN_IF_ERROR(Measure(
      items.size(), [&](size_t i) -> const Value& { return items[i]; }, list->depth, list->nodes));
  list->items = std::move(items);
  list->tuple = tuple;
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Result<Value> Value::Of(std::vector<std::pair<std::string, Value>> entries) {
  auto mapping = std::make_shared<Mapping>();
  auto& kept = mapping->entries;
  std::unordered_map<std::string, size_t> places;
  for (auto& [key, value] : entries) {
    const auto [it, added] = places.emplace(key, kept.size());
    if (added) {
      kept.emplace_back(std::move(key), std::move(value));
    } else {
      kept[it->second].second = std::move(value);
    }
  }
  for (size_t i = 0; kept.size() > kFewEntries && i < kept.size(); ++i) {
    mapping->index.emplace(kept[i].first, i);
  }
  WEFT_RETURN_IF_ERROR(Measure(
      kept.size(), [&](size_t i) -> const Value& { return kept[i].second; }, mapping->depth,
      mapping->nodes));
  return Value(std::shared_ptr<const Mapping>(std::move(mapping)));
}

Result<Value> Value::FromJson(std::string_view text) {
  size_t at = 0;
  SkipJsonSpace(text, at);
  WEFT_ASSIGN_OR_RETURN(const std::string_view value, ScanJsonValue(text, at));
  SkipJsonSpace(text, at);
  if (at < text.size()) return InvalidError("not valid JSON: something follows the value");
  return ReadJson(value, 1);
}

int64_t Value::integer() const {
  return kind() == Kind::kBoolean ? int64_t{std::get<bool>(data_)} : std::get<int64_t>(data_);
}

double Value::number() const {
  return kind() == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::Truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kFloat:
      return number() != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kList:
      return !list().items.empty();
    case Kind::kMapping:
      return !mapping().entries.empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      break;
  }
  return true;
}

std::string_view Value::TypeName() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBoolean:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return list().tuple ? "tuple" : "list";
    case Kind::kMapping:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
  }
  return "";
}

int Value::depth() const {
  return is_list() ? list().depth : is_mapping() ? mapping().depth : 0;
}

size_t Value::nodes() const {
  return is_list() ? list().nodes : is_mapping() ? mapping().nodes : 1;
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      return a.text() == b.text();
    case Value::Kind::kList:
      return EqualLists(a.list(), b.list());
    case Value::Kind::kMapping:
      return EqualMappings(a.mapping(), b.mapping());
    case Value::Kind::kNamespace:
      return &a.space() == &b.space();
    case Value::Kind::kFunction:
      return a.function().name == b.function().name && a.function().macro == b.function().macro;
    default:
      return true;  // undefined or None, both
  }
}

Result<bool> Less(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  // The order of bytes in UTF-8 is that of code points.
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.is_list() && b.is_list() && a.list().tuple == b.list().tuple) {
    const std::vector<Value>& x = a.list().items;
    const std::vector<Value>& y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(x[i], y[i])) return Less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  if (a.is_undefined()) return InvalidError(a.missing() + " is undefined");
  if (b.is_undefined()) return InvalidError(b.missing() + " is undefined");
  return InvalidError("a value of type " + std::string(a.TypeName()) +
                      " cannot be ordered against one of type " + std::string(b.TypeName()));
}

std::vector<size_t> CharacterStarts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(ReadUtf8(text, at).bytes)) {
    starts.push_back(at);
  }
  starts.push_back(text.size());
  return starts;
}

size_t CharacterCount(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(ReadUtf8(text, at).bytes)) {
    ++count;
  }
  return count;
}

Result<std::vector<Value>> ItemsOf(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return items;
    case Value::Kind::kList:
      return value.list().items;
    case Value::Kind::kMapping:
      for (const auto& [key, unused] : value.mapping().entries) items.push_back(Value::String(key));
      return items;
    case Value::Kind::kString: {
      if (value.text().size() > Value::kMaxNodes) {
        return InvalidError("a text of " + std::to_string(value.text().size()) +
                            " bytes is too long to be taken apart");
      }
      const std::vector<size_t> starts = CharacterStarts(value.text());
      for (size_t i = 0; i + 1 < starts.size(); ++i) {
        items.push_back(Value::String(value.text().substr(starts[i], starts[i + 1] - starts[i])));
      }
      return items;
    }
    default:
      return InvalidError("a value of type " + std::string(value.TypeName()) +
                          " cannot be iterated over");
  }
}

}  // namespace weft::jinja
