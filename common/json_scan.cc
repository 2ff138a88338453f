#include "common/json_scan.h"

#include <algorithm>

#include "common/json.h"

namespace weft {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kEndOfScalar = " \t\r\n,:]}[{\"";

/// Where the string that begins at `at` ends, after its last quote.
std::optional<size_t> EndOfString(std::string_view text, size_t at) {
  ++at;
  while ((at = text.find_first_of("\"\\", at)) != std::string_view::npos) {
    if (text[at] == '"') return at + 1;
    at += 2;  // with what is escaped
  }
  return std::nullopt;
}

/// Where the object or array that begins at `at` ends.
std::optional<size_t> EndOfBrackets(std::string_view text, size_t at) {
  std::string open;
  while ((at = text.find_first_of("\"[]{}", at)) != std::string_view::npos) {
    const char c = text[at];
    if (c == '"') {
      const std::optional<size_t> end = EndOfString(text, at);
      if (!end) return std::nullopt;
      at = *end;
      continue;
    }
    ++at;
    if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      continue;
    }
    if (open.empty() || open.back() != c) return std::nullopt;
    open.pop_back();
    if (open.empty()) return at;
  }
  return std::nullopt;
}

bool IsScalar(std::string_view text) {
  for (const char* word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
    if (text == word) return true;
  }
  return !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string_view::npos;
}

Status NotJson(size_t at, const std::string& reason) {
  return InvalidError("not valid JSON: at column " + std::to_string(at + 1) + ": " + reason);
}

/// Calls `member(at)` at each element between the brackets of `text`; it moves over the element.
template <class Member>
Status ForEach(std::string_view text, char open, char close, Member&& member) {
  size_t at = 0;
  SkipJsonSpace(text, at);
  if (at == text.size() || text[at] != open) {
    return NotJson(at, std::string("'") + open + "' is expected");
  }
  ++at;
  SkipJsonSpace(text, at);
  bool first = true;
  while (at == text.size() || text[at] != close || !first) {
    WEFT_RETURN_IF_ERROR(member(at));
    SkipJsonSpace(text, at);
    first = false;
    if (at == text.size()) return NotJson(at, "the text ends too early");
    if (text[at] == close) break;
    if (text[at] != ',') {
      return NotJson(at, std::string("',' or '") + close + "' is expected");
    }
    ++at;
    SkipJsonSpace(text, at);
  }
  ++at;
  SkipJsonSpace(text, at);
  return at == text.size() ? OkStatus() : NotJson(at, "something follows the value");
}

class LineFinder {
 public:
  LineFinder(std::string_view text, int depth) : text_(text), depth_(depth) {}

  std::map<std::string, int> Find() {
    size_t at = 0;
    SkipJsonSpace(text_, at);
    Visit(text_.substr(at), "", 0);
    return std::move(lines_);
  }

 private:
  void Visit(std::string_view value, const std::string& path, int depth) {
    if (depth >= depth_ || value.empty()) return;
    if (value[0] == '[') {
      const Result<std::vector<std::string_view>> elements = ScanJsonArray(value);
      if (!elements.ok()) return;
      for (size_t i = 0; i < elements->size(); ++i) {
        Add((*elements)[i], (*elements)[i], path + "[" + std::to_string(i) + "]", depth);
      }
      return;
    }
    const Result<std::vector<JsonMember>> members = ScanJsonObject(value);
    if (!members.ok()) return;
    for (const JsonMember& member : *members) {
      Add(member.key, member.value,
          path.empty() ? JsonKeyName(member.key) : path + "." + JsonKeyName(member.key), depth);
    }
  }

  void Add(std::string_view place, std::string_view value, const std::string& path, int depth) {
    // Places only move on, so each line end is counted once.
    const auto at = static_cast<size_t>(place.data() - text_.data());
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    counted_ = at;
    lines_.emplace(path, line_);
    Visit(value, path, depth + 1);
  }

  std::string_view text_;
  int depth_;
  int line_ = 1;
  size_t counted_ = 0;
  std::map<std::string, int> lines_;
};

}  // namespace

void SkipJsonSpace(std::string_view text, size_t& at) {
  at = std::min(text.find_first_not_of(kSpace, at), text.size());
}

Result<std::string_view> ScanJsonValue(std::string_view text, size_t& at) {
  const size_t begin = at;
  if (at >= text.size()) return NotJson(at, "the text ends too early");
  std::optional<size_t> end;
  if (text[at] == '"') {
    end = EndOfString(text, at);
    if (!end) return NotJson(begin, "a string is not closed");
  } else if (text[at] == '{' || text[at] == '[') {
    end = EndOfBrackets(text, at);
    if (!end) return NotJson(begin, "a bracket is not closed");
  } else {
    end = std::min(text.find_first_of(kEndOfScalar, at), text.size());
    if (!IsScalar(text.substr(begin, *end - begin))) return NotJson(begin, "a value is expected");
  }
  at = *end;
  return text.substr(begin, at - begin);
}

Result<std::vector<JsonMember>> ScanJsonObject(std::string_view text) {
  std::vector<JsonMember> members;
  WEFT_RETURN_IF_ERROR(ForEach(text, '{', '}', [&](size_t& at) -> Status {
    if (at >= text.size() || text[at] != '"') return NotJson(at, "a key in quotes is expected");
    JsonMember member;
    WEFT_ASSIGN_OR_RETURN(member.key, ScanJsonValue(text, at));
    SkipJsonSpace(text, at);
    if (at == text.size() || text[at] != ':') return NotJson(at, "':' is expected");
    ++at;
    SkipJsonSpace(text, at);
    WEFT_ASSIGN_OR_RETURN(member.value, ScanJsonValue(text, at));
    members.push_back(member);
    return OkStatus();
  }));
  return members;
}

Result<std::vector<std::string_view>> ScanJsonArray(std::string_view text) {
  std::vector<std::string_view> elements;
  WEFT_RETURN_IF_ERROR(ForEach(text, '[', ']', [&](size_t& at) -> Status {
    WEFT_ASSIGN_OR_RETURN(std::string_view element, ScanJsonValue(text, at));
    elements.push_back(element);
    return OkStatus();
  }));
  return elements;
}

std::string JsonKeyName(std::string_view key) {
  const std::string_view inner = key.substr(1, key.size() - 2);
  if (inner.find('\\') == std::string_view::npos) return std::string(inner);
  const Result<Json> parsed = ParseJson(key);
  return parsed.ok() ? parsed->get<std::string>() : std::string(inner);
}

std::map<std::string, int> JsonLines(std::string_view text, int depth) {
  return LineFinder(text, depth).Find();
}

}  // namespace weft
