#include "common/formats/pretokenizer.h"

#include "common/formats/unicode_tables.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// tiktoken's way to write it.
constexpr std::string_view kGpt2ShortRegex =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100kRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Classified {
  CharClass kind = CharClass::kOther;
  size_t bytes = 1;
};

Classified Classify(std::string_view text, size_t at) {
  Utf8Char c = ReadUtf8(text, at);
  return {c.valid ? ClassOf(c.code) : CharClass::kOther, static_cast<size_t>(c.bytes)};
}

/// End of the longest run of one class that begins at `at`; at most `limit` characters.
size_t RunEnd(std::string_view text, size_t at, CharClass kind, size_t limit = SIZE_MAX) {
  while (at < text.size() && limit-- > 0) {
    Classified c = Classify(text, at);
    if (c.kind != kind) break;
    at += c.bytes;
  }
  return at;
}

bool IsNewline(char c) {
  return c == '\r' || c == '\n';
}

/// Length of "'s", "'ll" and the like at the start of `text`; 0 when there is none.
size_t ContractionLength(std::string_view text, bool ignore_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  auto fold = [&](char c) {
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  char first = fold(text[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  // U+017F, the long s, is a case variant of s.
  if (ignore_case && text.substr(1).starts_with("\xc5\xbf")) return 3;
  if (text.size() < 3) return 0;
  char second = fold(text[2]);
  bool found = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return found ? 3 : 0;
}

/// The piece for \s+(?!\S)|\s+ when `text` starts with a space: the run of spaces, without its last
/// one when another kind of character follows and something remains.
size_t SpaceRunLength(std::string_view text) {
  size_t end = 0;
  size_t last = 0;
  while (end < text.size()) {
    Classified c = Classify(text, end);
    if (c.kind != CharClass::kSpace) break;
    last = end;
    end += c.bytes;
  }
  return end == text.size() || last == 0 ? end : last;
}

size_t NextGpt2Piece(std::string_view text) {
  if (size_t length = ContractionLength(text, false); length > 0) return length;
  size_t start = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  Classified c = Classify(text, start);
  if (c.kind != CharClass::kSpace) return RunEnd(text, start + c.bytes, c.kind);
  return SpaceRunLength(text);
}

size_t NextCl100kPiece(std::string_view text, size_t digits) {
  if (size_t length = ContractionLength(text, true); length > 0) return length;
  Classified first = Classify(text, 0);
  if (first.kind == CharClass::kLetter) return RunEnd(text, first.bytes, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) return RunEnd(text, 0, CharClass::kNumber, digits);
  if (!IsNewline(text[0])) {
    size_t end = RunEnd(text, first.bytes, CharClass::kLetter);
    if (end > first.bytes) return end;
  }
  size_t start = text[0] == ' ' ? 1 : 0;
  if (size_t end = RunEnd(text, start, CharClass::kOther); end > start) {
    while (end < text.size() && IsNewline(text[end])) ++end;
    return end;
  }
  size_t run = RunEnd(text, 0, CharClass::kSpace);
  for (size_t end = run; end > 0; --end) {
    if (IsNewline(text[end - 1])) return end;
  }
  return SpaceRunLength(text);
}

}  // namespace

std::optional<SplitPattern> PatternOfRegex(std::string_view regex) {
  if (regex == kGpt2Regex || regex == kGpt2ShortRegex) return SplitPattern::kGpt2;
  if (regex == kCl100kRegex) return SplitPattern::kCl100k;
  if (regex == kQwen2Regex) return SplitPattern::kQwen2;
  return std::nullopt;
}

std::string_view RegexOfPattern(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kCl100k:
      return kCl100kRegex;
    case SplitPattern::kQwen2:
      return kQwen2Regex;
  }
  return "";
}

size_t NextPiece(SplitPattern pattern, std::string_view text) {
  if (text.empty()) return 0;
  switch (pattern) {
    case SplitPattern::kGpt2:
      return NextGpt2Piece(text);
    case SplitPattern::kCl100k:
      return NextCl100kPiece(text, 3);
    case SplitPattern::kQwen2:
      return NextCl100kPiece(text, 1);
  }
  return text.size();
}

}  // namespace weft
