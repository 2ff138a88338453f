// Tests, global functions, and how arguments meet parameters.
#include "common/formats/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "common/text.h"

namespace weft::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;
using Kind = Value::Kind;

Result<bool> Compares(std::string_view op, const Value& a, const Value& b) {
  if (op == "eq") return Equal(a, b);
  if (op == "ne") return !Equal(a, b);
  if (op == "lt") return Less(a, b);
  if (op == "gt") return Less(b, a);
  WEFT_ASSIGN_OR_RETURN(const bool reverse, op == "le" ? Less(b, a) : Less(a, b));
  return !reverse;
}

/// The short name of a test that compares with its argument; "" for others.
std::string_view ComparisonOf(std::string_view name) {
  constexpr std::array<std::array<std::string_view, 4>, 6> kNames = {{
      {"eq", "equalto", "==", "sameas"},
      {"ne", "!=", "", ""},
      {"lt", "lessthan", "<", ""},
      {"gt", "greaterthan", ">", ""},
      {"le", "<=", "", ""},
      {"ge", ">=", "", ""},
  }};
  for (const auto& names : kNames) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return names[0];
  }
  return "";
}

using PlainTest = bool (*)(const Value&);

/// Tests without an argument.
const std::map<std::string, PlainTest, std::less<>>& PlainTests() {
  static const std::map<std::string, PlainTest, std::less<>> tests = {
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"boolean", [](const Value& v) { return v.kind() == Kind::kBoolean; }},
      {"true", [](const Value& v) { return v.kind() == Kind::kBoolean && v.Truthy(); }},
      {"false", [](const Value& v) { return v.kind() == Kind::kBoolean && !v.Truthy(); }},
      {"integer", [](const Value& v) { return v.kind() == Kind::kInteger; }},
      {"float", [](const Value& v) { return v.kind() == Kind::kFloat; }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"string", [](const Value& v) { return v.is_string(); }},
      {"mapping", [](const Value& v) { return v.is_mapping(); }},
      {"callable", [](const Value& v) { return v.kind() == Kind::kFunction; }},
      {"iterable",
       [](const Value& v) {
         return v.is_undefined() || v.is_string() || v.is_list() || v.is_mapping();
       }},
      {"sequence",
       [](const Value& v) {
         return v.is_undefined() || v.is_string() || v.is_list() || v.is_mapping();
       }},
      {"lower",
       [](const Value& v) {
         return v.is_string() && LowerCase(v.text()) == v.text() && UpperCase(v.text()) != v.text();
       }},
      {"upper",
       [](const Value& v) {
         return v.is_string() && UpperCase(v.text()) == v.text() && LowerCase(v.text()) != v.text();
       }},
  };
  return tests;
}

Result<Value> MakeRange(const Arguments& arguments) {
  constexpr int64_t kMost = 100000;  // as in Jinja's sandbox
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind("range", {"start", "stop", "step"}, 1));
  for (const auto& value : bound) {
    if (value.has_value() && !value->is_integral()) return InvalidError("range() takes integers");
  }
  const int64_t start = bound[1].has_value() ? bound[0]->integer() : 0;
  const int64_t stop = bound[1].has_value() ? bound[1]->integer() : bound[0]->integer();
  const int64_t step = bound[2].has_value() ? bound[2]->integer() : 1;
  if (step == 0) return InvalidError("the step of range() is zero");
  std::vector<Value> items;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(items.size()) == kMost) {
      return InvalidError("range() of more than " + std::to_string(kMost) + " numbers");
    }
    items.push_back(Value::Integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::Of(std::move(items));
}

/// The entries that dict() and namespace() begin with.
Result<std::vector<std::pair<std::string, Value>>> Entries(const Arguments& arguments,
                                                           const std::string& name) {
  std::vector<std::pair<std::string, Value>> entries;
  if (arguments.positional.size() > 1) return InvalidError(name + "() takes one mapping");
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_mapping()) return InvalidError(name + "() takes a mapping");
    entries = arguments.positional[0].mapping().entries;
  }
  entries.insert(entries.end(), arguments.keywords.begin(), arguments.keywords.end());
  return entries;
}

Result<Value> FormatNow(const Arguments& arguments, const std::tm& now) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind("strftime_now", {"format"}, 1));
  constexpr size_t kMostFormat = 200;
  if (!bound[0]->is_string() || bound[0]->text().size() > kMostFormat) {
    return InvalidError("strftime_now() takes a short string");
  }
  char text[4096];
  const size_t size = std::strftime(text, sizeof text, bound[0]->text().c_str(), &now);
  return Value::String(std::string(text, size));
}

Status RaiseException(const Arguments& arguments) {
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind("raise_exception", {"message"}, 1));
  WEFT_ASSIGN_OR_RETURN(const std::string message, ToText(*bound[0]));
  return InvalidError("the template refuses the conversation: " + ClipText(message, 300));
}

}  // namespace

Status Runtime::Spend(size_t steps) {
  steps_left -= static_cast<int64_t>(std::min<size_t>(steps, INT32_MAX));
  if (steps_left >= 0) return OkStatus();
  return InvalidError("the template takes too many steps; hint: does a loop of it grow?");
}

Result<Bound> Arguments::Bind(std::string_view name,
                              std::initializer_list<std::string_view> parameters,
                              size_t required) const {
  Bound bound(parameters.size());
  const std::string call = std::string(name) + "()";
  if (positional.size() > parameters.size()) {
    return InvalidError(call + " takes at most " + std::to_string(parameters.size()) +
                        " arguments and got " + std::to_string(positional.size()));
  }
  std::copy(positional.begin(), positional.end(), bound.begin());
  for (const auto& [keyword, value] : keywords) {
    const auto* found = std::find(parameters.begin(), parameters.end(), keyword);
    if (found == parameters.end()) {
      return InvalidError(call + " has no parameter '" + ClipText(keyword) + "'");
    }
    std::optional<Value>& place = bound[static_cast<size_t>(found - parameters.begin())];
    if (place.has_value()) return InvalidError(call + " got '" + keyword + "' twice");
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].has_value()) continue;
    return InvalidError(call + " lacks its argument '" + std::string(parameters.begin()[i]) + "'");
  }
  return bound;
}

bool IsTest(std::string_view name) {
  return PlainTests().contains(name) || !ComparisonOf(name).empty() || name == "in" ||
         name == "even" || name == "odd" || name == "divisibleby" || name == "filter" ||
         name == "test";
}

Result<bool> ApplyTest(const std::string& name, const Value& input, const Arguments& arguments) {
  if (const auto it = PlainTests().find(name); it != PlainTests().end()) {
    WEFT_RETURN_IF_ERROR(arguments.Bind(name, {}, 0).status());
    return it->second(input);
  }
  if (name == "even" || name == "odd") {
    WEFT_RETURN_IF_ERROR(arguments.Bind(name, {}, 0).status());
    if (!input.is_integral()) return InvalidError("the test '" + name + "' is of integers");
    return (input.integer() % 2 == 0) == (name == "even");
  }
  WEFT_ASSIGN_OR_RETURN(Bound bound, arguments.Bind(name, {"other"}, 1));
  const Value& other = *bound[0];
  if (name == "in") return Contains(other, input);
  if (name == "divisibleby") {
    if (!input.is_integral() || !other.is_integral() || other.integer() == 0) {
      return InvalidError("the test 'divisibleby' is of integers, and not by zero");
    }
    return other.integer() == -1 || input.integer() % other.integer() == 0;
  }
  if (name == "filter" || name == "test") {
    if (!input.is_string()) return false;
    return name == "filter" ? IsFilter(input.text()) : IsTest(input.text());
  }
  if (name == "sameas" && input.kind() != other.kind()) return false;
  return Compares(ComparisonOf(name), input, other);
}

bool IsGlobal(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"range", "dict", "namespace",
                                                      "raise_exception", "strftime_now"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Result<Value> CallGlobal(const std::string& name, const Arguments& arguments, Runtime& runtime) {
  if (name == "range") return MakeRange(arguments);
  if (name == "strftime_now") return FormatNow(arguments, runtime.now);
  if (name == "raise_exception") return RaiseException(arguments);
  WEFT_ASSIGN_OR_RETURN(auto entries, Entries(arguments, name));
  WEFT_ASSIGN_OR_RETURN(Value mapping, Value::Of(std::move(entries)));
  if (name == "dict") return mapping;
  runtime.namespaces.push_back({mapping.mapping().entries});
  return Value::Of(&runtime.namespaces.back());
}

}  // namespace weft::jinja
