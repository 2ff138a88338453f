#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "common/formats/jinja_builtins.h"
#include "common/formats/unicode.h"
#include "common/formats/utf8.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

/// What a filter gets: its input, its arguments and the runtime.
struct Call {
  std::string name;
  const Value& input;
  const Arguments& arguments;
  Runtime& runtime;

  Result<Bound> Bind(std::initializer_list<std::string_view> parameters,
                     size_t required = 0) const {
    return arguments.Bind(name, parameters, required);
  }
};

bool IsTrue(const std::optional<Value>& value) {
  return value.has_value() && value->Truthy();
}

Result<int64_t> IntegerOf(const std::optional<Value>& value, int64_t otherwise) {
  if (!value.has_value() || value->is_none()) return otherwise;
  if (value->is_integral()) return value->integer();
  return InvalidError("an argument is of type " + std::string(value->TypeName()) + ", not int");
}

/// The value at a path of attributes ("function.name").
Result<Value> ValueAt(const Value& item, const Value& path) {
  if (path.is_integral()) return ItemOf(item, path);
  if (!path.is_string()) return InvalidError("the name of an attribute must be a string");
  Value value = item;
  std::string_view rest = path.text();
  for (;;) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size();
    WEFT_ASSIGN_OR_RETURN(
        value, ItemOf(value, number ? Value::Integer(index) : Value::String(std::string(part))));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

/// What items are compared by: themselves or an attribute, strings without regard to case.
Result<Value> SortKey(const Value& item, const std::optional<Value>& attribute,
                      bool case_sensitive) {
  Value key = item;
  if (attribute.has_value() && !attribute->is_none()) {
    WEFT_ASSIGN_OR_RETURN(key, ValueAt(item, *attribute));
  }
  if (!case_sensitive && key.is_string()) return Value::String(LowerCase(key.text()));
  return key;
}

/// The order of keys, smallest first; equal ones keep theirs.
Result<std::vector<size_t>> SortedOrder(const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status refused;
  auto less = [&](const Value& a, const Value& b) {
    Result<bool> result = Less(a, b);
    if (result.ok()) return *result;
    refused = result.status();
    return false;
  };
  // All must be comparable with the first, or the order would not be one.
  for (const Value& key : keys) (void)less(keys[0], key);
  WEFT_RETURN_IF_ERROR(refused);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  WEFT_RETURN_IF_ERROR(refused);
  return order;
}

Result<Value> Default(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"default_value", "boolean"}));
  const bool missing = call.input.is_undefined() || (IsTrue(bound[1]) && !call.input.Truthy());
  return missing ? bound[0].value_or(Value::String("")) : call.input;
}

Result<Value> Length(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  const Value& input = call.input;
  size_t count = 0;
  if (input.is_string()) {
    count = CharacterCount(input.text());
  } else if (input.is_list()) {
    count = input.list().items.size();
  } else if (input.is_mapping()) {
    count = input.mapping().entries.size();
  } else if (!input.is_undefined()) {
    return InvalidError("a value of type " + std::string(input.TypeName()) + " has no length");
  }
  return Value::Integer(static_cast<int64_t>(count));
}

Result<Value> Join(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"d", "attribute"}));
  WEFT_ASSIGN_OR_RETURN(const std::string separator, ToText(bound[0].value_or(Value::String(""))));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  std::string result;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (bound[1].has_value() && !bound[1]->is_none()) {
      WEFT_ASSIGN_OR_RETURN(item, ValueAt(item, *bound[1]));
    }
    WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(item));
    result.append(i > 0 ? separator : "").append(text);
    WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  return Value::String(std::move(result));
}

Result<Value> FirstOrLast(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  if (items.empty()) return Value::Undefined("the " + call.name + " of no items");
  return call.name == "first" ? items.front() : items.back();
}

Result<Value> Trim(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"chars"}));
  WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(call.input));
  std::optional<std::string> characters;
  if (bound[0].has_value() && !bound[0]->is_none()) {
    WEFT_ASSIGN_OR_RETURN(characters, ToText(*bound[0]));
  }
  return Value::String(std::string(Stripped(text, characters, /*left=*/true, /*right=*/true)));
}

Result<Value> Replace(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"old", "new", "count"}, 2));
  WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(call.input));
  WEFT_ASSIGN_OR_RETURN(const std::string from, ToText(*bound[0]));
  WEFT_ASSIGN_OR_RETURN(const std::string to, ToText(*bound[1]));
  WEFT_ASSIGN_OR_RETURN(const int64_t most, IntegerOf(bound[2], -1));
  WEFT_ASSIGN_OR_RETURN(std::string result, Replaced(text, from, to, most));
  return Value::String(std::move(result));
}

/// The first letter of each word in upper case, the others in lower case.
std::string TitleWords(std::string_view text) {
  std::string result;
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    first ? AppendUpperCase(result, c.code) : AppendLowerCase(result, c.code);
    first = IsUnicodeSpace(c.code) ||
            (c.code < 0x80 &&
             std::string_view("-({[<").find(static_cast<char>(c.code)) != std::string_view::npos);
    at += static_cast<size_t>(c.bytes);
  }
  return result;
}

Result<Value> ChangeCase(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(call.input));
  return Value::String(call.name == "lower"        ? LowerCase(text)
                       : call.name == "upper"      ? UpperCase(text)
                       : call.name == "capitalize" ? Capitalized(text)
                                                   : TitleWords(text));
}

Result<Value> AsText(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  WEFT_ASSIGN_OR_RETURN(std::string text, ToText(call.input));
  return Value::String(std::move(text));
}

Result<Value> AsList(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(call.input));
  return Value::Of(std::move(items));
}

Result<Value> Items(const Call& call) {
  if (call.input.is_undefined()) return Value::Of(std::vector<Value>());
  if (!call.input.is_mapping()) return InvalidError("the filter 'items' is of mappings");
  return CallMethod(call.input, "items", call.arguments);
}

Result<Value> Reverse(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(call.input));
  std::reverse(items.begin(), items.end());
  if (!call.input.is_string()) return Value::Of(std::move(items));
  std::string text;
  for (const Value& item : items) text += item.text();
  return Value::String(std::move(text));
}

Result<Value> AsInteger(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"default"}));
  const Value otherwise = bound[0].value_or(Value::Integer(0));
  if (call.input.is_integral()) return Value::Integer(call.input.integer());
  double number = 0;
  if (call.input.is_number()) {
    number = call.input.number();
  } else if (call.input.is_string()) {
    std::string_view text = Stripped(call.input.text(), std::nullopt, true, true);
    if (text.starts_with('+')) text.remove_prefix(1);
    int64_t integer = 0;
    const char* const begin = text.begin();
    const char* const end = text.end();
    if (const auto read = std::from_chars(begin, end, integer);
        read.ec == std::errc() && read.ptr == end) {
      return Value::Integer(integer);
    }
    if (const auto read = std::from_chars(begin, end, number);
        read.ec != std::errc() || read.ptr != end) {
      return otherwise;
    }
  } else {
    return otherwise;
  }
  if (!(std::fabs(number) < 9e18)) return otherwise;
  return Value::Integer(static_cast<int64_t>(number));
}

Result<Value> AsFloat(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"default"}));
  if (call.input.is_number()) return Value::Float(call.input.number());
  if (call.input.is_string()) {
    std::string_view text = Stripped(call.input.text(), std::nullopt, true, true);
    if (text.starts_with('+')) text.remove_prefix(1);
    double number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) {
      return Value::Float(number);
    }
  }
  return bound[0].value_or(Value::Float(0));
}

Result<Value> Absolute(const Call& call) {
  WEFT_RETURN_IF_ERROR(call.Bind({}).status());
  if (!call.input.is_number()) return InvalidError("the filter 'abs' is of numbers");
  if (!call.input.is_integral()) return Value::Float(std::fabs(call.input.number()));
  return call.input.integer() < 0 ? ApplyOperator("-", Value::Integer(0), call.input)
                                  : Value::Integer(call.input.integer());
}

Result<Value> Round(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"precision", "method"}));
  WEFT_ASSIGN_OR_RETURN(const int64_t precision, IntegerOf(bound[0], 0));
  if (!call.input.is_number()) return InvalidError("the filter 'round' is of numbers");
  const std::string method =
      bound[1].has_value() && bound[1]->is_string() ? bound[1]->text() : "common";
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -15, 15)));
  const double scaled = call.input.number() * scale;
  const double rounded = method == "ceil"    ? std::ceil(scaled)
                         : method == "floor" ? std::floor(scaled)
                                             : std::nearbyint(scaled);
  return Value::Float(rounded / scale);
}

Result<Value> Sum(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"attribute", "start"}));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  Value sum = bound[1].value_or(Value::Integer(0));
  for (Value item : items) {
    if (bound[0].has_value() && !bound[0]->is_none()) {
      WEFT_ASSIGN_OR_RETURN(item, ValueAt(item, *bound[0]));
    }
    if (!sum.is_number()) return InvalidError("the filter 'sum' is of numbers");
    WEFT_ASSIGN_OR_RETURN(sum, ApplyOperator("+", sum, item));
  }
  return sum;
}

Result<Value> AsJson(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound,
                        call.Bind({"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii_only = IsTrue(bound[0]);
  WEFT_ASSIGN_OR_RETURN(const int64_t indent, IntegerOf(bound[1], -1));
  if (indent > 100) return InvalidError("tojson() is indented by more than 100 spaces");
  style.indent = static_cast<int>(std::max<int64_t>(indent, -1));
  style.sort_keys = IsTrue(bound[3]);
  if (style.indent >= 0) style.item = ",";
  if (bound[2].has_value() && !bound[2]->is_none()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<Value> separators, ItemsOf(*bound[2]));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      return InvalidError("the separators of tojson() must be two strings");
    }
    style.item = separators[0].text();
    style.key = separators[1].text();
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, ToJson(call.input, style));
  return Value::String(std::move(text));
}

Result<Value> Indent(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"width", "first", "blank"}));
  WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(call.input));
  std::string indent;
  if (bound[0].has_value() && bound[0]->is_string()) {
    indent = bound[0]->text();
  } else {
    WEFT_ASSIGN_OR_RETURN(const int64_t width, IntegerOf(bound[0], 4));
    indent.assign(static_cast<size_t>(std::clamp<int64_t>(width, 0, 1000)), ' ');
  }
  const std::string with_end = text + '\n';
  std::string result = IsTrue(bound[1]) ? indent : "";
  bool first = true;
  for (std::string_view line : LinesOf(with_end, /*keep_ends=*/false)) {
    if (!first) result += '\n';
    if (!first && (!line.empty() || IsTrue(bound[2]))) result += indent;
    result += line;
    first = false;
    WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  return Value::String(std::move(result));
}

Result<Value> Sort(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"reverse", "case_sensitive", "attribute"}));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  std::vector<Value> keys;
  for (const Value& item : items) {
    WEFT_ASSIGN_OR_RETURN(Value key, SortKey(item, bound[2], IsTrue(bound[1])));
    keys.push_back(std::move(key));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(keys, IsTrue(bound[0])));
  std::vector<Value> sorted;
  for (size_t i : order) sorted.push_back(items[i]);
  return Value::Of(std::move(sorted));
}

Result<Value> SortMapping(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"case_sensitive", "by", "reverse"}));
  if (!call.input.is_mapping()) return InvalidError("the filter 'dictsort' is of mappings");
  WEFT_ASSIGN_OR_RETURN(const Value pairs, CallMethod(call.input, "items", {}));
  const bool by_value = bound[1].has_value() && Equal(*bound[1], Value::String("value"));
  const Arguments arguments = {{},
                               {{"reverse", bound[2].value_or(Value::Boolean(false))},
                                {"case_sensitive", bound[0].value_or(Value::Boolean(false))},
                                {"attribute", Value::Integer(by_value ? 1 : 0)}}};
  return ApplyFilter("sort", pairs, arguments, call.runtime);
}

Result<Value> Unique(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"case_sensitive", "attribute"}));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  std::vector<Value> keys, kept;
  for (const Value& item : items) {
    WEFT_RETURN_IF_ERROR(call.runtime.Spend(keys.size()));
    WEFT_ASSIGN_OR_RETURN(Value key, SortKey(item, bound[1], IsTrue(bound[0])));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return Equal(k, key); })) {
      continue;
    }
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::Of(std::move(kept));
}

Result<Value> Extreme(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"case_sensitive", "attribute"}));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  if (items.empty()) return Value::Undefined("the " + call.name + " of no items");
  Value best = items[0];
  for (const Value& item : items) {
    WEFT_ASSIGN_OR_RETURN(const Value a, SortKey(item, bound[1], IsTrue(bound[0])));
    WEFT_ASSIGN_OR_RETURN(const Value b, SortKey(best, bound[1], IsTrue(bound[0])));
    WEFT_ASSIGN_OR_RETURN(const bool better, call.name == "min" ? Less(a, b) : Less(b, a));
    if (better) best = item;
  }
  return best;
}

/// The arguments after the first `count`.
Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

Result<Value> Map(const Call& call) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  std::vector<Value> results;
  const std::vector<Value>& given = call.arguments.positional;
  if (given.empty()) {
    WEFT_ASSIGN_OR_RETURN(Bound bound, call.Bind({"attribute", "default"}, 1));
    for (const Value& item : items) {
      WEFT_ASSIGN_OR_RETURN(Value value, ValueAt(item, *bound[0]));
      if (value.is_undefined() && bound[1].has_value()) value = *bound[1];
      results.push_back(std::move(value));
    }
    return Value::Of(std::move(results));
  }
  if (!given[0].is_string() || !IsFilter(given[0].text())) {
    return InvalidError("map() takes the name of a filter");
  }
  const Arguments rest = Without(call.arguments, 1);
  for (const Value& item : items) {
    WEFT_RETURN_IF_ERROR(call.runtime.Spend(1));
    WEFT_ASSIGN_OR_RETURN(Value value, ApplyFilter(given[0].text(), item, rest, call.runtime));
    results.push_back(std::move(value));
  }
  return Value::Of(std::move(results));
}

/// select, reject, selectattr and rejectattr.
Result<Value> Select(const Call& call) {
  const bool by_attribute = call.name.ends_with("attr");
  const bool keeps = call.name.starts_with("select");
  const std::vector<Value>& given = call.arguments.positional;
  const size_t names = by_attribute ? 1 : 0;
  if (given.size() < names) return InvalidError(call.name + "() lacks the name of an attribute");
  const bool tests = given.size() > names;
  if (tests && (!given[names].is_string() || !IsTest(given[names].text()))) {
    return InvalidError(call.name + "() takes the name of a test");
  }
  const Arguments rest = Without(call.arguments, names + (tests ? 1 : 0));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call.input));
  std::vector<Value> kept;
  for (const Value& item : items) {
    Value value = item;
    if (by_attribute) {
      WEFT_ASSIGN_OR_RETURN(value, ValueAt(item, given[0]));
    }
    bool holds = value.Truthy();
    if (tests) {
      WEFT_ASSIGN_OR_RETURN(holds, ApplyTest(given[names].text(), value, rest));
    }
    if (holds == keeps) kept.push_back(item);
  }
  return Value::Of(std::move(kept));
}

using Filter = Result<Value> (*)(const Call&);

const std::map<std::string, Filter, std::less<>>& Filters() {
  static const std::map<std::string, Filter, std::less<>> filters = {
      {"abs", Absolute},      {"capitalize", ChangeCase},
      {"count", Length},      {"d", Default},
      {"default", Default},   {"dictsort", SortMapping},
      {"first", FirstOrLast}, {"float", AsFloat},
      {"indent", Indent},     {"int", AsInteger},
      {"items", Items},       {"join", Join},
      {"last", FirstOrLast},  {"length", Length},
      {"list", AsList},       {"lower", ChangeCase},
      {"map", Map},           {"max", Extreme},
      {"min", Extreme},       {"reject", Select},
      {"rejectattr", Select}, {"replace", Replace},
      {"reverse", Reverse},   {"round", Round},
      {"safe", AsText},       {"select", Select},
      {"selectattr", Select}, {"sort", Sort},
      {"string", AsText},     {"sum", Sum},
      {"title", ChangeCase},  {"tojson", AsJson},
      {"trim", Trim},         {"unique", Unique},
      {"upper", ChangeCase},
  };
  return filters;
}

}  // namespace

bool IsFilter(std::string_view name) {
  return Filters().contains(name);
}

Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Runtime& runtime) {
  return Filters().at(name)({name, input, arguments, runtime});
}

}  // namespace weft::jinja
