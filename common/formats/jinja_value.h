#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace weft::jinja {

class Value;
struct Macro;  // a statement of the template (jinja_syntax.h)

/// A sequence; as in Python a tuple is one that prints in parentheses. Cannot be changed.
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;     ///< Levels of lists and mappings, this one included.
  size_t nodes = 1;  ///< Values in it, over all levels and this one included.
};

/// A mapping from strings, in the order in which keys were added. Cannot be changed.
struct Mapping {
  std::vector<std::pair<std::string, Value>> entries;
  std::unordered_map<std::string_view, size_t> index;  ///< Of their keys, where there are many.
  int depth = 1;
  size_t nodes = 1;

  /// The value of a key, or null.
  const Value* Find(std::string_view key) const;
};

/// What namespace() returns: the one thing whose attributes a template may set.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

/// A function: a macro of the template, or a global function of this name.
struct Function {
  std::string name;
  const Macro* macro = nullptr;  ///< Null: the global function.
};

/// A value of a template, as Python's of the same name. Cheap to copy.
class Value {
 public:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBoolean,
    kInteger,
    kFloat,
    kString,
    kList,
    kMapping,
    kNamespace,
    kFunction
  };

  /// None.
  Value() = default;

  /// What a name, key or attribute that does not exist gives. `what` names it in errors.
  static Value Undefined(std::string what);
  static Value Boolean(bool value) { return Value(value); }
  static Value Integer(int64_t value) { return Value(value); }
  static Value Float(double value) { return Value(value); }
  static Value String(std::string text);
  /// Points to a namespace that the interpreter owns.
  static Value Of(Namespace* space) { return Value(space); }
  static Value Of(Function function);

  /// kInvalid: nested past kMaxDepth, or more than kMaxNodes values.
  static Result<Value> Of(std::vector<Value> items, bool tuple = false);
  /// A later entry with the same key replaces an earlier one.
  static Result<Value> Of(std::vector<std::pair<std::string, Value>> entries);

  /// A JSON value; the keys of objects keep their order. kInvalid: malformed text.
  static Result<Value> FromJson(std::string_view text);

  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxNodes = size_t{1} << 22;
  static constexpr size_t kMaxText = size_t{128} << 20;  ///< Bytes of a string.

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_list() const { return kind() == Kind::kList; }
  bool is_mapping() const { return kind() == Kind::kMapping; }
  /// An integer or, as in Python, a boolean.
  bool is_integral() const { return kind() == Kind::kInteger || kind() == Kind::kBoolean; }
  bool is_number() const { return is_integral() || kind() == Kind::kFloat; }

  // What it holds; its kind must be right.
  int64_t integer() const;  ///< Of an integer or boolean.
  double number() const;    ///< Of any number.
  const std::string& text() const { return *std::get<Text>(data_).text; }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Mapping& mapping() const { return *std::get<std::shared_ptr<const Mapping>>(data_); }
  Namespace& space() const { return *std::get<Namespace*>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  /// The name of what is not defined.
  const std::string& missing() const { return *std::get<Missing>(data_).what; }

  /// Python's bool().
  bool Truthy() const;

  /// "str", "int", "dict", ...: how Python's errors call it.
  std::string_view TypeName() const;

  /// Levels of lists and mappings, and values in them.
  int depth() const;
  size_t nodes() const;

 private:
  struct Missing {
    std::shared_ptr<const std::string> what;
  };
  struct Text {
    std::shared_ptr<const std::string> text;
  };

  template <class T>
  explicit Value(T data) : data_(std::move(data)) {}

  std::variant<Missing, std::monostate, bool, int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Mapping>, Namespace*, std::shared_ptr<const Function>>
      data_{std::in_place_index<1>};
};

/// Python's ==. Values of different kinds are unequal, except for numbers.
bool Equal(const Value& a, const Value& b);

/// Python's a < b, where it is defined: of numbers, strings and lists. Else kInvalid.
Result<bool> Less(const Value& a, const Value& b);

/// The error of a string that is longer than kMaxText, else OK.
Status CheckTextSize(size_t bytes);

/// Python's str(), which is what {{ }} prints; undefined values are "". kInvalid: a function or
/// a namespace, which have no text, or too long a text.
Result<std::string> ToText(const Value& value);

/// How ToJson writes.
struct JsonStyle {
  int indent = -1;          ///< Spaces of a level; negative: all on one line.
  std::string item = ", ";  ///< Between two items.
  std::string key = ": ";   ///< Between a key and its value.
  bool sort_keys = false;   ///< Otherwise in their order.
  bool ascii_only = false;  ///< Other characters are escaped.
};

/// The text of json.dumps(). kInvalid: a value that JSON does not have, or too long a text.
Result<std::string> ToJson(const Value& value, const JsonStyle& style);

/// The items that a loop over the value visits: of a list, the keys of a mapping, the characters
/// of a string; none of an undefined value. kInvalid: a value that cannot be iterated over.
Result<std::vector<Value>> ItemsOf(const Value& value);

/// Characters (code points) of a string; bytes that are no UTF-8 count one each.
size_t CharacterCount(std::string_view text);

/// Where each character of a string begins, and then its size.
std::vector<size_t> CharacterStarts(std::string_view text);

}  // namespace weft::jinja
