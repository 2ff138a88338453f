#include "common/formats/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

constexpr std::array<std::string_view, 27> kOperators = {
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">",
    "=",  "(",  ")",  "[",  "]",  "{",  "}", ".", ":", "|", ",", ";", "!"};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// With "\n" for each end of a line, and without the last.
std::string NormalizedLines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool IsSpaceAt(std::string_view text, size_t at, size_t& bytes) {
  const Utf8Char c = ReadUtf8(text, at);
  bytes = static_cast<size_t>(c.bytes);
  return IsUnicodeSpace(c.code) || (c.code >= 0x1c && c.code <= 0x1f);
}

/// `text` without white space at its end.
std::string_view WithoutSpaceAtEnd(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
    if (!IsSpaceAt(text, at, bytes)) end = at + bytes;
  }
  return text.substr(0, end);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) WEFT_RETURN_IF_ERROR(ReadDataAndTag());
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  std::string_view Rest() const { return std::string_view(source_).substr(at_); }

  Status Error(const std::string& what) const {
    return InvalidError("line " + std::to_string(line_) + ": " + what);
  }

  void Add(Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  void Move(size_t bytes) {
    const std::string_view passed = Rest().substr(0, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += passed.size();
    line_starts_ = passed.empty() ? line_starts_ : passed.back() == '\n';
  }

  void SkipSpace() {
    size_t end = at_;
    for (size_t bytes = 0; end < source_.size(); end += bytes) {
      if (!IsSpaceAt(source_, end, bytes)) break;
    }
    Move(end - at_);
  }

  /// Adds the text before a delimiter; `sign` is what follows that, and a variable's leaves what
  /// is before it on its line.
  void AddData(std::string_view data, char sign, bool is_variable) {
    if (sign == '-') {
      data = WithoutSpaceAtEnd(data);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = data.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starts_) && WithoutSpaceAtEnd(data).size() <= line_begin) {
        data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) Add(Kind::kData, data);
  }

  /// Passes the end of a tag. `closing` is "%}", "}}" or "#}" without its sign. False: not here.
  bool PassEnd(std::string_view closing) {
    const std::string_view rest = Rest();
    if (rest.starts_with('-') && rest.substr(1).starts_with(closing)) {
      Move(1 + closing.size());
      SkipSpace();
      return true;
    }
    const bool keeps = closing != "}}" && rest.starts_with('+');
    if (!rest.substr(keeps ? 1 : 0).starts_with(closing)) return false;
    Move((keeps ? 1 : 0) + closing.size());
    if (!keeps && closing != "}}" && Rest().starts_with('\n')) Move(1);
    return true;
  }

  Status ReadDataAndTag() {
    const std::string_view rest = Rest();
    size_t begin = rest.find('{');
    while (begin != std::string_view::npos &&
           (begin + 1 == rest.size() ||
            std::string_view("%{#").find(rest[begin + 1]) == std::string_view::npos)) {
      begin = rest.find('{', begin + 1);
    }
    if (begin == std::string_view::npos) {
      Add(Kind::kData, rest);
      Move(rest.size());
      return OkStatus();
    }
    const char kind = rest[begin + 1];
    const char sign = begin + 2 < rest.size() ? rest[begin + 2] : '\0';
    AddData(rest.substr(0, begin), sign, kind == '{');
    Move(begin + 2);
    if (sign == '-' || sign == '+') Move(1);
    if (kind == '#') return SkipComment();
    if (kind == '%' && IsWordNext("raw")) return ReadRaw();
    Add(kind == '%' ? Kind::kBlockBegin : Kind::kVariableBegin, "");
    return ReadExpression(kind == '%' ? "%}" : "}}",
                          kind == '%' ? Kind::kBlockEnd : Kind::kVariableEnd);
  }

  Status SkipComment() {
    const int line = line_;
    while (at_ < source_.size()) {
      if (PassEnd("#}")) return OkStatus();
      Move(1);
    }
    line_ = line;
    return Error("the comment that begins here has no end \"#}\"");
  }

  /// Whether a tag holds this word alone.
  bool IsWordNext(std::string_view word) const {
    std::string_view rest = Rest();
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n"), rest.size()));
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n"), rest.size()));
    return rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}");
  }

  Status ReadRaw() {
    const int line = line_;
    const size_t end = source_.find("%}", at_);
    const bool strips = source_[end - 1] == '-';
    Move(end + 2 - at_);
    if (strips) SkipSpace();
    for (size_t begin = at_; (begin = source_.find("{%", begin)) != std::string::npos; ++begin) {
      const std::string_view data = std::string_view(source_).substr(at_, begin - at_);
      const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
      const size_t before = at_;
      const int line_before = line_;
      at_ = begin + (sign == '-' || sign == '+' ? 3 : 2);
      const bool found = IsWordNext("endraw");
      at_ = before;
      if (!found) continue;
      AddData(data, sign, /*is_variable=*/false);
      line_ = line_before;
      Move(source_.find("endraw", begin) + 6 - at_);
      SkipSpace();
      PassEnd("%}");
      return OkStatus();
    }
    line_ = line;
    return Error("{% raw %} has no {% endraw %}");
  }

  Status ReadExpression(std::string_view closing, Kind closing_kind) {
    const int line = line_;
    int open = 0;  // brackets
    for (;;) {
      SkipSpace();
      if (at_ == source_.size()) {
        line_ = line;
        return Error("the tag that begins here has no end \"" + std::string(closing) + "\"");
      }
      const int end_line = line_;
      // Within brackets "}}" closes two mappings.
      if (open == 0 && PassEnd(closing)) {
        tokens_.push_back({closing_kind, "", end_line});
        return OkStatus();
      }
      const char c = source_[at_];
      if (IsNameStart(c)) {
        AddWhile(Kind::kName, [](char x) { return IsNameStart(x) || IsDigit(x); });
      } else if (IsDigit(c)) {
        ReadNumber();
      } else if (c == '\'' || c == '"') {
        WEFT_RETURN_IF_ERROR(ReadString(c));
      } else {
        WEFT_RETURN_IF_ERROR(ReadOperator(open));
      }
    }
  }

  template <class Belongs>
  void AddWhile(Kind kind, const Belongs& belongs) {
    size_t end = at_;
    while (end < source_.size() && belongs(source_[end])) ++end;
    Add(kind, std::string_view(source_).substr(at_, end - at_));
    Move(end - at_);
  }

  Status ReadOperator(int& open) {
    const std::string_view rest = Rest();
    const auto* op = std::find_if(kOperators.begin(), kOperators.end(),
                                  [&](std::string_view text) { return rest.starts_with(text); });
    if (op == kOperators.end() || *op == "!" || *op == ";") {
      const size_t bytes = static_cast<size_t>(ReadUtf8(rest, 0).bytes);
      return Error("unexpected character '" + ClipText(rest.substr(0, bytes)) + "'");
    }
    if (*op == "(" || *op == "[" || *op == "{") ++open;
    if (*op == ")" || *op == "]" || *op == "}") {
      if (open == 0) return Error("'" + std::string(*op) + "' closes nothing");
      --open;
    }
    Add(Kind::kOperator, *op);
    Move(op->size());
    return OkStatus();
  }

  void ReadNumber() {
    auto digits = [&](size_t from) {
      size_t end = from;
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
      return end;
    };
    size_t end = digits(at_);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      is_float = true;
      end = digits(end + 1);
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t sign = end + 1;
      if (sign < source_.size() && (source_[sign] == '+' || source_[sign] == '-')) ++sign;
      if (sign < source_.size() && IsDigit(source_[sign])) {
        is_float = true;
        end = digits(sign);
      }
    }
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
    Add(is_float ? Kind::kFloat : Kind::kInteger, number);
    Move(end - at_);
  }

  Status ReadString(char quote) {
    std::string text;
    const size_t begin = at_ + 1;
    size_t end = begin;
    while (end < source_.size() && source_[end] != quote) {
      if (source_[end] == '\\' && end + 1 < source_.size()) {
        WEFT_RETURN_IF_ERROR(ReadEscape(end, text));
      } else {
        text += source_[end++];
      }
    }
    if (end == source_.size()) return Error("the string that begins here has no end");
    Add(Kind::kString, text);
    Move(end + 1 - at_);
    return OkStatus();
  }

  /// Reads an escape of Python at `at`, and moves it past that.
  Status ReadEscape(size_t& at, std::string& text) {
    const char c = source_[at + 1];
    at += 2;
    constexpr std::string_view kLetters = "abfnrtv\\'\"\n";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      if (i < kMeanings.size()) text += kMeanings[i];  // an escaped line break is nothing
      return OkStatus();
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t code = 0;
      for (size_t i = 0; i < digits; ++i, ++at) {
        const char digit = at < source_.size() ? source_[at] : '\0';
        const size_t value = std::string_view("0123456789abcdefABCDEF").find(digit);
        if (value == std::string_view::npos) {
          return Error("a string has a broken \\" + std::string(1, c) + " escape");
        }
        code = code << 4 | static_cast<uint32_t>(value < 16 ? value : value - 6);
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return Error("a string has an escape for no character");
      }
      AppendUtf8(text, code);
      return OkStatus();
    }
    if (c >= '0' && c <= '7') {
      uint32_t code = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < source_.size() && source_[at] >= '0' && source_[at] <= '7';
           ++i, ++at) {
        code = code * 8 + static_cast<uint32_t>(source_[at] - '0');
      }
      AppendUtf8(text, code);
      return OkStatus();
    }
    text += '\\';
    text += c;
    return OkStatus();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  ///< What was passed last ended a line, or nothing was passed.
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) {
  return Lexer(NormalizedLines(source)).Run();
}

}  // namespace weft::jinja
