// How values become text: Python's str() and repr(), and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/formats/jinja_value.h"
#include "common/formats/utf8.h"

namespace weft::jinja {
namespace {

/// Python's repr() of a float: the shortest digits that give it back, with an exponent below 1e-4
/// and from 1e16.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  char text[64];
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  const std::to_chars_result end =
      std::to_chars(text, text + sizeof text, value,
                    exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string result(text, end.ptr);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

/// Escapes that repr() and JSON have in common, "" for none.
std::string_view ShortEscape(char32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
      return "\\\\";
    default:
      return "";
  }
}

std::string Hex(const char* prefix, char32_t code, int digits) {
  std::string text(static_cast<size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, code >>= 4) {
    text[static_cast<size_t>(i)] = "0123456789abcdef"[code & 15];
  }
  return prefix + text;
}

/// Python's repr() of a string.
std::string QuotedText(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    const std::string_view escape = ShortEscape(c.code);
    if (!escape.empty()) {
      result += escape;
    } else if (c.code == static_cast<char32_t>(quote)) {
      result += {'\\', quote};
    } else if (c.code < 0x20 || (c.code >= 0x7f && c.code <= 0xa0) || c.code == 0xad) {
      result += Hex("\\x", c.code, 2);
    } else {
      result += text.substr(at, static_cast<size_t>(c.bytes));
    }
    at += static_cast<size_t>(c.bytes);
  }
  return result + quote;
}

/// Python's repr(), appended.
Status AppendRepresentation(const Value& value, std::string& out) {
  WEFT_RETURN_IF_ERROR(CheckTextSize(out.size()));
  switch (value.kind()) {
    case Value::Kind::kString:
      out += QuotedText(value.text());
      return OkStatus();
    case Value::Kind::kList: {
      const List& list = value.list();
      out += list.tuple ? '(' : '[';
      for (size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) out += ", ";
        WEFT_RETURN_IF_ERROR(AppendRepresentation(list.items[i], out));
      }
      if (list.tuple && list.items.size() == 1) out += ',';
      out += list.tuple ? ')' : ']';
      return OkStatus();
    }
    case Value::Kind::kMapping: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.mapping().entries) {
        if (!first) out += ", ";
        first = false;
        out += QuotedText(key) + ": ";
        WEFT_RETURN_IF_ERROR(AppendRepresentation(item, out));
      }
      out += '}';
      return OkStatus();
    }
    case Value::Kind::kUndefined:
      out += "Undefined";
      return OkStatus();
    default: {
      WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(value));
      out += text;
      return OkStatus();
    }
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  Status Append(const Value& value, int level) {
    WEFT_RETURN_IF_ERROR(CheckTextSize(out_.size()));
    switch (value.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        return OkStatus();
      case Value::Kind::kBoolean:
        out_ += value.integer() != 0 ? "true" : "false";
        return OkStatus();
      case Value::Kind::kInteger:
        out_ += std::to_string(value.integer());
        return OkStatus();
      case Value::Kind::kFloat:
        AppendFloat(value.number());
        return OkStatus();
      case Value::Kind::kString:
        AppendString(value.text());
        return OkStatus();
      case Value::Kind::kList:
        return AppendAll(value.list().items, level, "[]",
                         [&](const Value& item) { return Append(item, level + 1); });
      case Value::Kind::kMapping: {
        auto entries = value.mapping().entries;
        if (style_.sort_keys) {
          std::sort(entries.begin(), entries.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
        }
        return AppendAll(entries, level, "{}", [&](const auto& entry) {
          AppendString(entry.first);
          out_ += style_.key;
          return Append(entry.second, level + 1);
        });
      }
      case Value::Kind::kUndefined:
        return InvalidError(value.missing() + " is undefined and cannot be written as JSON");
      default:
        return InvalidError("a value of type " + std::string(value.TypeName()) +
                            " cannot be written as JSON");
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  template <class Items, class AppendOne>
  Status AppendAll(const Items& items, int level, const char* brackets, const AppendOne& append) {
    out_ += brackets[0];
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += style_.item;
      first = false;
      BreakLine(level + 1);
      WEFT_RETURN_IF_ERROR(append(item));
    }
    if (!items.empty()) BreakLine(level);
    out_ += brackets[1];
    return OkStatus();
  }

  void BreakLine(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' ');
  }

  void AppendFloat(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += FloatText(value);
    }
  }

  void AppendString(std::string_view text) {
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = ReadUtf8(text, at);
      const std::string_view bytes = text.substr(at, static_cast<size_t>(c.bytes));
      at += bytes.size();
      if (const std::string_view escape = ShortEscape(c.code); !escape.empty()) {
        out_ += escape;
      } else if (c.code == '"') {
        out_ += "\\\"";
      } else if (c.code == '\b') {
        out_ += "\\b";
      } else if (c.code == '\f') {
        out_ += "\\f";
      } else if (c.code < 0x20 || (style_.ascii_only && c.code >= 0x7f && c.code < 0x10000)) {
        out_ += c.code == 0x7f ? "\x7f" : Hex("\\u", c.code, 4);
      } else if (style_.ascii_only && c.code >= 0x10000) {
        const char32_t rest = c.code - 0x10000;
        out_ += Hex("\\u", 0xd800 + (rest >> 10), 4) + Hex("\\u", 0xdc00 + (rest & 0x3ff), 4);
      } else {
        out_ += bytes;
      }
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Status CheckTextSize(size_t bytes) {
  if (bytes <= Value::kMaxText) return OkStatus();
  return InvalidError("a text of more than " + std::to_string(Value::kMaxText >> 20) + " MiB");
}

Result<std::string> ToText(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return std::string();
    case Value::Kind::kNone:
      return std::string("None");
    case Value::Kind::kBoolean:
      return std::string(value.integer() != 0 ? "True" : "False");
    case Value::Kind::kInteger:
      return std::to_string(value.integer());
    case Value::Kind::kFloat:
      return FloatText(value.number());
    case Value::Kind::kString:
      return value.text();
    case Value::Kind::kList:
    case Value::Kind::kMapping: {
      std::string text;
      WEFT_RETURN_IF_ERROR(AppendRepresentation(value, text));
      return text;
    }
    case Value::Kind::kNamespace:
      return InvalidError("a namespace cannot be printed; hint: print one of its attributes");
    case Value::Kind::kFunction:
      return InvalidError("the function " + value.function().name +
                          " cannot be printed; hint: call it: " + value.function().name + "()");
  }
  return std::string();
}

Result<std::string> ToJson(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  WEFT_RETURN_IF_ERROR(writer.Append(value, 0));
  return writer.Take();
}

}  // namespace weft::jinja
