#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/jinja_value.h"
#include "common/status.h"

namespace weft::jinja {

/// What a render has: the work that it may still do, and what functions see of the world.
struct Runtime {
  int64_t steps_left = 0;
  std::tm now = {};                  ///< For strftime_now.
  std::deque<Namespace> namespaces;  ///< That values point to.

  /// kInvalid when there is less left than `steps`.
  Status Spend(size_t steps);
};

/// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  /// Those of a function `name` with these parameters. The first `required` ones must be there;
  /// nothing where one is left out. kInvalid: one too many, an unknown or missing one.
  Result<std::vector<std::optional<Value>>> Bind(std::string_view name,
                                                 std::initializer_list<std::string_view> parameters,
                                                 size_t required) const;
};

/// Whether Jinja, as transformers sets it up, has such a filter or test that is supported.
bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);

// Errors are kInvalid and say what was wrong, without a line.

/// input | name(arguments)
Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Runtime& runtime);

/// input is name(arguments)
Result<bool> ApplyTest(const std::string& name, const Value& input, const Arguments& arguments);

/// self.name(arguments): a method of Python's str, list or dict.
Result<Value> CallMethod(const Value& self, const std::string& name, const Arguments& arguments);

/// Whether there is a global function of this name, and its value.
bool IsGlobal(std::string_view name);
Result<Value> CallGlobal(const std::string& name, const Arguments& arguments, Runtime& runtime);

/// self.name, and self[key]: undefined where there is none. kInvalid: `self` is undefined.
Result<Value> AttributeOf(const Value& self, const std::string& name);
Result<Value> ItemOf(const Value& self, const Value& key);

/// self[start:stop:step] of a string or list; none where left out.
Result<Value> SliceOf(const Value& self, const std::optional<int64_t>& start,
                      const std::optional<int64_t>& stop, const std::optional<int64_t>& step);

/// a op b, op one of + - * / // % **.
Result<Value> ApplyOperator(std::string_view op, const Value& a, const Value& b);

/// Whether `item` is in `container`: equal to one of a list, a key, a part of a string.
Result<bool> Contains(const Value& container, const Value& item);

// Python's methods of strings.
std::string LowerCase(std::string_view text);
std::string UpperCase(std::string_view text);
std::string Capitalized(std::string_view text);
std::string_view Stripped(std::string_view text, const std::optional<std::string>& characters,
                          bool left, bool right);
std::vector<std::string_view> LinesOf(std::string_view text, bool keep_ends);
Result<std::string> Replaced(std::string_view text, std::string_view from, std::string_view to,
                             int64_t most);

}  // namespace weft::jinja
