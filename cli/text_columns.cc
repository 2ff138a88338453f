#include "cli/text_columns.h"

#include <algorithm>
#include <utility>

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"

namespace weft::cli {
namespace {

/// East Asian wide and full-width characters, and emoji.
bool IsWide(char32_t code) {
  static constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
      {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
      {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [code](const auto& range) {
    return code >= range.first && code <= range.second;
  });
}

/// One character as it is shown.
struct Glyph {
  char32_t code;
  int columns;
};

/// Reads the character at `at` and moves past it.
Glyph NextGlyph(std::string_view text, size_t& at) {
  const Utf8Char c = ReadUtf8(text, at);
  at += static_cast<size_t>(c.bytes);
  const bool control = c.code < 0x20 || (c.code >= 0x7f && c.code < 0xa0);
  const char32_t code = control ? U' ' : c.code;
  if (IsCombiningMark(code) || code == 0x200b || code == 0x200d) return {code, 0};
  return {code, IsWide(code) ? 2 : 1};
}

/// Moves `at` past what fits into `width` columns, and returns that.
std::string TakeColumns(std::string_view text, size_t& at, int width) {
  std::string taken;
  while (at < text.size()) {
    size_t next = at;
    const Glyph glyph = NextGlyph(text, next);
    if (glyph.columns > width) break;
    width -= glyph.columns;
    AppendUtf8(taken, glyph.code);
    at = next;
  }
  return taken;
}

}  // namespace

int CountColumns(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += NextGlyph(text, at).columns;
  return columns;
}

std::string CutToColumns(std::string_view text, int width) {
  size_t at = 0;
  std::string whole = TakeColumns(text, at, width);
  if (at == text.size()) return whole;
  at = 0;
  return TakeColumns(text, at, width - 1) + "…";
}

std::vector<std::string> FlowParts(const std::vector<std::string>& parts,
                                   std::string_view separator, int width) {
  std::vector<std::string> lines;
  int free_columns = 0;  // of the last line
  for (const std::string& part : parts) {
    const int columns = CountColumns(part);
    const int wanted = CountColumns(separator) + columns;
    if (!lines.empty() && wanted <= free_columns) {
      size_t at = 0;
      lines.back() += std::string(separator) + TakeColumns(part, at, columns);
      free_columns -= wanted;
      continue;
    }
    for (size_t at = 0; at < part.size();) {
      std::string line = TakeColumns(part, at, width);
      if (line.empty()) {  // A wide character in a single column.
        NextGlyph(part, at);
        line = "…";
      }
      free_columns = width - CountColumns(line);
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::vector<std::string> FlowWords(std::string_view text, int width) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return FlowParts(words, " ", width);
}

}  // namespace weft::cli
