// Operators, attributes and items of values, as Python has them.
#include <algorithm>
#include <cmath>

#include "common/formats/jinja_builtins.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

Status CannotApply(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return InvalidError(value->missing() + " is undefined");
  }
  return InvalidError("the operator " + std::string(op) + " does not take a value of type " +
                      std::string(a.TypeName()) + " and one of type " + std::string(b.TypeName()));
}

Status TooLarge() {
  return InvalidError("an integer is too large");
}

Result<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value::Float(std::pow(base, exponent));
  int64_t result = 1;
  // Only 0, 1 and -1 have powers past the 63rd.
  if (exponent > 63 && (base > 1 || base < -1)) return TooLarge();
  if (exponent > 63) exponent = 62 + exponent % 2;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value::Integer(result);
}

Result<Value> OfIntegers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+" || op == "-" || op == "*") {
    const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &result)
                          : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                      : __builtin_mul_overflow(a, b, &result);
    if (overflow) return TooLarge();
    return Value::Integer(result);
  }
  if (op == "**") return IntegerPower(a, b);
  if (b == 0) return InvalidError("division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Result<Value>(Value::Integer(0)) : OfIntegers("-", 0, a);
  const bool rounds = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down
  if (op == "//") return Value::Integer(a / b - (rounds ? 1 : 0));
  return Value::Integer(a % b + (rounds ? b : 0));
}

Result<Value> OfFloats(std::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return InvalidError("division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  const double rest = std::fmod(a, b);
  return Value::Float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Result<Value> Repeated(const Value& value, int64_t times) {
  const size_t count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is_string()) {
    const std::string& text = value.text();
    if (!text.empty() && count > Value::kMaxText / text.size()) {
      return CheckTextSize(Value::kMaxText + 1);
    }
    std::string result;
    result.reserve(text.size() * count);
    for (size_t i = 0; i < count && !text.empty(); ++i) result += text;
    return Value::String(std::move(result));
  }
  const std::vector<Value>& items = value.list().items;
  if (!items.empty() && count > Value::kMaxNodes / items.size()) {
    return InvalidError("a list is repeated too often");
  }
  std::vector<Value> result;
  for (size_t i = 0; i < count && !items.empty(); ++i) {
    result.insert(result.end(), items.begin(), items.end());
  }
  return Value::Of(std::move(result), value.list().tuple);
}

/// The place of an index in `size` items; nothing when it is out of range.
std::optional<size_t> PlaceOf(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < 0) index += count;
  if (index < 0 || index >= count) return std::nullopt;
  return static_cast<size_t>(index);
}

/// The places that a slice visits.
std::vector<size_t> PlacesOfSlice(size_t size, const std::optional<int64_t>& start,
                                  const std::optional<int64_t>& stop, int64_t step) {
  const auto count = static_cast<int64_t>(size);
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? count : count - 1;
  auto bound = [&](const std::optional<int64_t>& given, int64_t otherwise) {
    if (!given.has_value()) return otherwise;
    return std::clamp(*given < 0 ? *given + count : *given, low, high);
  };
  int64_t at = bound(start, step > 0 ? low : high);
  const int64_t end = bound(stop, step > 0 ? high : low);
  step = std::clamp(step, -count - 1, count + 1);
  std::vector<size_t> places;
  for (; step > 0 ? at < end : at > end; at += step) places.push_back(static_cast<size_t>(at));
  return places;
}

std::string Named(const Value& key) {
  const Result<std::string> text = ToText(key);
  return text.ok() ? "'" + ClipText(*text) + "'" : "the key";
}

}  // namespace

Result<Value> ApplyOperator(std::string_view op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return OfIntegers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return OfFloats(op, a.number(), b.number());
  if (op == "+" && a.is_string() && b.is_string()) {
    WEFT_RETURN_IF_ERROR(CheckTextSize(a.text().size() + b.text().size()));
    return Value::String(a.text() + b.text());
  }
  if (op == "+" && a.is_list() && b.is_list() && a.list().tuple == b.list().tuple) {
    std::vector<Value> items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    return Value::Of(std::move(items), a.list().tuple);
  }
  if (op == "*") {
    if ((a.is_string() || a.is_list()) && b.is_integral()) return Repeated(a, b.integer());
    if (a.is_integral() && (b.is_string() || b.is_list())) return Repeated(b, a.integer());
  }
  if (op == "%" && a.is_string()) {
    return InvalidError("formatting with % is not supported; hint: join the parts with ~");
  }
  return CannotApply(op, a, b);
}

Result<bool> Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Value::Kind::kUndefined:
      return false;
    case Value::Kind::kString:
      if (!item.is_string()) return CannotApply("in", item, container);
      return container.text().find(item.text()) != std::string::npos;
    case Value::Kind::kList: {
      const std::vector<Value>& items = container.list().items;
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& other) { return Equal(item, other); });
    }
    case Value::Kind::kMapping:
      return item.is_string() && container.mapping().Find(item.text()) != nullptr;
    default:
      return CannotApply("in", item, container);
  }
}

Result<Value> AttributeOf(const Value& self, const std::string& name) {
  if (self.is_undefined()) return InvalidError(self.missing() + " is undefined");
  if (self.kind() == Value::Kind::kNamespace) {
    for (const auto& [attribute, value] : self.space().attributes) {
      if (attribute == name) return value;
    }
  }
  if (self.is_mapping()) {
    if (const Value* value = self.mapping().Find(name)) return *value;
  }
  return Value::Undefined("'" + ClipText(name) + "' of a value of type " +
                          std::string(self.TypeName()));
}

Result<Value> ItemOf(const Value& self, const Value& key) {
  if (key.is_string()) return AttributeOf(self, key.text());
  if (self.is_undefined()) return InvalidError(self.missing() + " is undefined");
  if (self.is_list() && key.is_integral()) {
    const std::optional<size_t> place = PlaceOf(key.integer(), self.list().items.size());
    if (place.has_value()) return self.list().items[*place];
  }
  if (self.is_string() && key.is_integral()) {
    const std::vector<size_t> starts = CharacterStarts(self.text());
    const std::optional<size_t> place = PlaceOf(key.integer(), starts.size() - 1);
    if (place.has_value()) {
      return Value::String(self.text().substr(starts[*place], starts[*place + 1] - starts[*place]));
    }
  }
  return Value::Undefined(Named(key) + " of a value of type " + std::string(self.TypeName()));
}

Result<Value> SliceOf(const Value& self, const std::optional<int64_t>& start,
                      const std::optional<int64_t>& stop, const std::optional<int64_t>& step) {
  const int64_t by = step.value_or(1);
  if (by == 0) return InvalidError("the step of a slice is zero");
  if (self.is_list()) {
    std::vector<Value> items;
    for (size_t place : PlacesOfSlice(self.list().items.size(), start, stop, by)) {
      items.push_back(self.list().items[place]);
    }
    return Value::Of(std::move(items), self.list().tuple);
  }
  if (self.is_string()) {
    const std::string& text = self.text();
    const std::vector<size_t> starts = CharacterStarts(text);
    std::string result;
    for (size_t place : PlacesOfSlice(starts.size() - 1, start, stop, by)) {
      result.append(text, starts[place], starts[place + 1] - starts[place]);
    }
    return Value::String(std::move(result));
  }
  if (self.is_undefined()) return InvalidError(self.missing() + " is undefined");
  return Value::Undefined("a slice of a value of type " + std::string(self.TypeName()));
}

}  // namespace weft::jinja
