// Methods of strings, lists and mappings, as Python has them.
#include <algorithm>
#include <array>
#include <functional>

#include "common/formats/jinja_builtins.h"
#include "common/formats/unicode.h"
#include "common/formats/utf8.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

bool IsSpace(char32_t code) {
  return IsUnicodeSpace(code) || (code >= 0x1c && code <= 0x1f);
}

template <class Change>
std::string Changed(std::string_view text, const Change& change) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    const size_t bytes = static_cast<size_t>(c.bytes);
    if (c.valid) {
      change(result, c.code);
    } else {
      result += text.substr(at, bytes);
    }
    at += bytes;
  }
  return result;
}

bool HasCase(char32_t code) {
  std::string lower, upper;
  AppendLowerCase(lower, code);
  AppendUpperCase(upper, code);
  return lower != upper;
}

std::string TitleCase(std::string_view text) {
  bool inside = false;  // a word
  return Changed(text, [&](std::string& out, char32_t code) {
    inside ? AppendLowerCase(out, code) : AppendUpperCase(out, code);
    inside = HasCase(code);
  });
}

/// Whether the text is not empty and `is` holds of all its characters.
template <class Is>
bool All(std::string_view text, const Is& is) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    if (!is(c.code)) return false;
    at += static_cast<size_t>(c.bytes);
  }
  return !text.empty();
}

/// Whether some characters have a case and all of these are in `wanted`.
bool IsInCase(std::string_view text, const std::string& wanted) {
  return wanted == text && LowerCase(text) != UpperCase(text);
}

bool IsLetter(char32_t code) {
  return IsUnicodeWord(code) && !IsUnicodeNumber(code) && !IsCombiningMark(code) && code != '_';
}

Result<Value> Parts(const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string_view part : parts) items.push_back(Value::String(std::string(part)));
  return Value::Of(std::move(items));
}

/// str.split and str.rsplit without a separator, in the order of the text.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string_view> words;
  std::string_view rest = text;
  for (;;) {
    rest = Stripped(rest, std::nullopt, /*left=*/true, /*right=*/false);
    if (rest.empty()) break;
    size_t end = 0;
    while (end < rest.size() && !IsSpace(ReadUtf8(rest, end).code)) {
      end += static_cast<size_t>(ReadUtf8(rest, end).bytes);
    }
    words.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  if (most < 0 || words.size() <= static_cast<size_t>(most)) return words;
  // One part is what is not split, with the white space that it has on its far side.
  const auto split = static_cast<ptrdiff_t>(most);
  if (from_right) {
    const std::string_view last = *(words.end() - 1 - split);
    const size_t end = static_cast<size_t>(last.data() + last.size() - text.data());
    words.erase(words.begin(), words.end() - 1 - split);
    words.front() = text.substr(0, end);
  } else {
    const size_t begin =
        static_cast<size_t>(words[static_cast<size_t>(split)].data() - text.data());
    words.erase(words.begin() + split + 1, words.end());
    words.back() = text.substr(begin);
  }
  return words;
}

/// The same with a separator; of rsplit the last part comes first.
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view after = text.substr(at + separator.size());
    parts.push_back(from_right ? after : before);
    text = from_right ? before : after;
  }
  parts.push_back(text);
  return parts;
}

Result<std::string> TextArgument(const std::optional<Value>& value, const std::string& method) {
  if (value.has_value() && value->is_string()) return value->text();
  return InvalidError(method + "() takes a string");
}

Result<std::optional<std::string>> CharactersArgument(const std::optional<Value>& value,
                                                      const std::string& method) {
  if (!value.has_value() || value->is_none()) return std::optional<std::string>();
  WEFT_ASSIGN_OR_RETURN(std::string text, TextArgument(value, method));
  return std::optional<std::string>(std::move(text));
}

Result<int64_t> CountArgument(const std::optional<Value>& value, const std::string& method) {
  if (!value.has_value()) return int64_t{-1};
  if (value->is_integral()) return value->integer();
  return InvalidError(method + "() takes an integer");
}

Result<Value> Split(std::string_view text, const std::string& name, const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"sep", "maxsplit"}, 0));
  WEFT_ASSIGN_OR_RETURN(const auto separator, CharactersArgument(bound[0], name));
  WEFT_ASSIGN_OR_RETURN(const int64_t most, CountArgument(bound[1], name));
  const bool from_right = name == "rsplit";
  if (separator.has_value() && separator->empty()) return InvalidError("empty separator");
  if (!separator.has_value()) return Parts(SplitAtSpace(text, most, from_right));
  std::vector<std::string_view> parts = SplitAt(text, *separator, most, from_right);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return Parts(parts);
}

/// startswith and endswith, of one string or a tuple of them.
Result<Value> HasEnd(std::string_view text, const std::string& name, const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"affix"}, 1));
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->is_list() && bound[0]->list().tuple) affixes = bound[0]->list().items;
  bool has = false;
  for (const Value& affix : affixes) {
    WEFT_ASSIGN_OR_RETURN(const std::string part, TextArgument(affix, name));
    has |= name == "startswith" ? text.starts_with(part) : text.ends_with(part);
  }
  return Value::Boolean(has);
}

Result<Value> FindPart(std::string_view text, const std::string& name, const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"sub"}, 1));
  WEFT_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], name));
  if (name == "count") {
    if (part.empty()) return Value::Integer(static_cast<int64_t>(CharacterCount(text)) + 1);
    int64_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
      ++count;
    }
    return Value::Integer(count);
  }
  const bool from_right = name.starts_with('r');
  const size_t at = from_right ? text.rfind(part) : text.find(part);
  if (at != std::string_view::npos) {
    return Value::Integer(static_cast<int64_t>(CharacterCount(text.substr(0, at))));
  }
  if (name.ends_with("index")) return InvalidError("the part is not in the string");
  return Value::Integer(-1);
}

Result<Value> JoinTexts(const std::string& separator, const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind("join", {"items"}, 1));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(*bound[0]));
  std::string result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) result += separator;
    WEFT_ASSIGN_OR_RETURN(const std::string text, TextArgument(items[i], "join"));
    result += text;
    WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  return Value::String(std::move(result));
}

Result<Value> StripText(std::string_view text, const std::string& name,
                        const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"chars"}, 0));
  WEFT_ASSIGN_OR_RETURN(const auto characters, CharactersArgument(bound[0], name));
  return Value::String(std::string(Stripped(text, characters, name != "rstrip", name != "lstrip")));
}

/// Methods that take nothing.
Result<Value> CallPlainMethod(const std::string& text, const std::string& name,
                              const Arguments& arguments) {
  WEFT_RETURN_IF_ERROR(arguments.Bind(name, {}, 0).status());
  if (name == "lower") return Value::String(LowerCase(text));
  if (name == "upper") return Value::String(UpperCase(text));
  if (name == "capitalize") return Value::String(Capitalized(text));
  if (name == "title") return Value::String(TitleCase(text));
  if (name == "islower") return Value::Boolean(IsInCase(text, LowerCase(text)));
  if (name == "isupper") return Value::Boolean(IsInCase(text, UpperCase(text)));
  if (name == "isspace") return Value::Boolean(All(text, IsSpace));
  if (name == "isalpha") return Value::Boolean(All(text, IsLetter));
  if (name == "isdigit") return Value::Boolean(All(text, IsUnicodeNumber));
  return Value::Boolean(All(text, [](char32_t code) {  // isalnum
    return IsLetter(code) || IsUnicodeNumber(code);
  }));
}

Result<Value> CallTextMethod(const std::string& text, const std::string& name,
                             const Arguments& arguments) {
  constexpr std::array<std::string_view, 10> kPlain = {
      "lower",   "upper",   "capitalize", "title",   "islower",
      "isupper", "isspace", "isalpha",    "isdigit", "isalnum"};
  if (std::find(kPlain.begin(), kPlain.end(), name) != kPlain.end()) {
    return CallPlainMethod(text, name, arguments);
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return StripText(text, name, arguments);
  }
  if (name == "split" || name == "rsplit") return Split(text, name, arguments);
  if (name == "startswith" || name == "endswith") return HasEnd(text, name, arguments);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return FindPart(text, name, arguments);
  }
  if (name == "join") return JoinTexts(text, arguments);
  if (name == "splitlines") {
    WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"keepends"}, 0));
    return Parts(LinesOf(text, bound[0].has_value() && bound[0]->Truthy()));
  }
  if (name == "replace") {
    WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"old", "new", "count"}, 2));
    WEFT_ASSIGN_OR_RETURN(const std::string from, TextArgument(bound[0], name));
    WEFT_ASSIGN_OR_RETURN(const std::string to, TextArgument(bound[1], name));
    WEFT_ASSIGN_OR_RETURN(const int64_t most, CountArgument(bound[2], name));
    WEFT_ASSIGN_OR_RETURN(std::string result, Replaced(text, from, to, most));
    return Value::String(std::move(result));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"affix"}, 1));
    WEFT_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], name));
    std::string_view rest = text;
    if (name == "removeprefix" && rest.starts_with(part)) rest.remove_prefix(part.size());
    if (name == "removesuffix" && rest.ends_with(part)) rest.remove_suffix(part.size());
    return Value::String(std::string(rest));
  }
  return InvalidError("no method '" + ClipText(name) + "' of strings is known");
}

Result<Value> CallListMethod(const List& list, const std::string& name,
                             const Arguments& arguments) {
  if (name == "count" || name == "index") {
    WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"value"}, 1));
    auto same = [&](const Value& item) { return Equal(item, *bound[0]); };
    if (name == "count") {
      return Value::Integer(std::count_if(list.items.begin(), list.items.end(), same));
    }
    const auto found = std::find_if(list.items.begin(), list.items.end(), same);
    if (found == list.items.end()) return InvalidError("the value is not in the list");
    return Value::Integer(found - list.items.begin());
  }
  return InvalidError("no method '" + ClipText(name) +
                      "' of lists is known (they cannot be changed); hint: add lists with +");
}

Result<Value> CallMappingMethod(const Value& self, const std::string& name,
                                const Arguments& arguments) {
  const Mapping& mapping = self.mapping();
  if (name == "get") {
    WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"key", "default"}, 1));
    const Value* found = bound[0]->is_string() ? mapping.Find(bound[0]->text()) : nullptr;
    return found != nullptr ? *found : bound[1].value_or(Value());
  }
  if (name == "items" || name == "keys" || name == "values" || name == "copy") {
    WEFT_RETURN_IF_ERROR(arguments.Bind(name, {}, 0).status());
    if (name == "copy") return self;
    std::vector<Value> items;
    for (const auto& [key, value] : mapping.entries) {
      if (name == "keys") {
        items.push_back(Value::String(key));
      } else if (name == "values") {
        items.push_back(value);
      } else {
        WEFT_ASSIGN_OR_RETURN(Value pair, Value::Of({Value::String(key), value}, /*tuple=*/true));
        items.push_back(std::move(pair));
      }
    }
    return Value::Of(std::move(items));
  }
  return InvalidError("no method '" + ClipText(name) +
                      "' of mappings is known (they cannot be changed)");
}

}  // namespace

std::string LowerCase(std::string_view text) {
  return Changed(text, AppendLowerCase);
}

std::string UpperCase(std::string_view text) {
  return Changed(text, AppendUpperCase);
}

std::string Capitalized(std::string_view text) {
  bool first = true;
  return Changed(text, [&](std::string& out, char32_t code) {
    first ? AppendUpperCase(out, code) : AppendLowerCase(out, code);
    first = false;
  });
}

std::string_view Stripped(std::string_view text, const std::optional<std::string>& characters,
                          bool left, bool right) {
  auto strips = [&](size_t at, size_t& bytes) {
    const Utf8Char c = ReadUtf8(text, at);
    bytes = static_cast<size_t>(c.bytes);
    if (!characters.has_value()) return IsSpace(c.code);
    return characters->find(text.substr(at, bytes)) != std::string::npos;
  };
  size_t bytes = 0;
  while (left && !text.empty() && strips(0, bytes)) text.remove_prefix(bytes);
  while (right && !text.empty()) {
    size_t at = text.size() - 1;  // where the last character begins
    while (at > 0 && text.size() - at < 4 && (text[at] & 0xc0) == 0x80) --at;
    if (!strips(at, bytes) || at + bytes != text.size()) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::vector<std::string_view> LinesOf(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    size_t end = at + static_cast<size_t>(c.bytes);
    const bool breaks = (c.code >= '\n' && c.code <= '\r') || (c.code >= 0x1c && c.code <= 0x1e) ||
                        c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
    if (breaks) {
      if (c.code == '\r' && end < text.size() && text[end] == '\n') ++end;
      lines.push_back(text.substr(begin, (keep_ends ? end : at) - begin));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Result<std::string> Replaced(std::string_view text, std::string_view from, std::string_view to,
                             int64_t most) {
  std::string result;
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    size_t found = text.find(from, at);
    if (from.empty()) {  // before each character, and at the end
      found = at;
      if (done > 0) {
        if (at == text.size()) break;
        found += static_cast<size_t>(ReadUtf8(text, at).bytes);
      }
    }
    if (found == std::string_view::npos) break;
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
    WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  result += text.substr(at);
  WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  return result;
}

Result<Value> CallMethod(const Value& self, const std::string& name, const Arguments& arguments) {
  if (self.is_string()) return CallTextMethod(self.text(), name, arguments);
  if (self.is_list()) return CallListMethod(self.list(), name, arguments);
  if (self.is_mapping()) return CallMappingMethod(self, name, arguments);
  if (self.is_undefined()) return InvalidError(self.missing() + " is undefined");
  return InvalidError("a value of type " + std::string(self.TypeName()) + " has no method '" +
                      ClipText(name) + "'");
}

}  // namespace weft::jinja
