#include "common/formats/text_normalizer.h"

#include <utility>

#include "common/formats/utf8.h"

namespace weft {
namespace {

/// Calls `each(code, bytes)` for the characters of a text; invalid bytes are U+FFFD.
template <class Each>
void ForEach(std::string_view text, Each&& each) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    each(c.code);
    at += static_cast<size_t>(c.bytes);
  }
}

bool IsChinese(char32_t c) {
  auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return in(0x4e00, 0x9fff) || in(0x3400, 0x4dbf) || in(0x20000, 0x2a6df) || in(0x2a700, 0x2b73f) ||
         in(0x2b740, 0x2b81f) || in(0x2b920, 0x2ceaf) || in(0xf900, 0xfaff) || in(0x2f800, 0x2fa1f);
}

template <class IsMark>
std::string Without(std::string_view text, IsMark&& is_mark) {
  std::string out;
  ForEach(text, [&](char32_t c) {
    if (!is_mark(c)) AppendUtf8(out, c);
  });
  return out;
}

std::string LowerCase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEach(text, [&](char32_t c) { AppendLowerCase(out, c); });
  return out;
}

struct Step {
  std::string_view text;

  std::string operator()(const BertNormalizer& bert) const {
    std::string out;
    out.reserve(text.size());
    ForEach(text, [&](char32_t c) {
      if (bert.clean_text) {
        if (c == 0 || c == 0xfffd || IsUnicodeControl(c)) return;
        if (IsUnicodeSpace(c)) c = ' ';
      }
      const bool spaced = bert.handle_chinese_chars && IsChinese(c);
      if (spaced) out += ' ';
      AppendUtf8(out, c);
      if (spaced) out += ' ';
    });
    if (bert.strip_accents) out = Without(ToNormalForm(out, NormalForm::kNfd), IsNonspacingMark);
    return bert.lowercase ? LowerCase(out) : out;
  }
  std::string operator()(NormalForm form) const { return ToNormalForm(text, form); }
  std::string operator()(const LowercaseNormalizer&) const { return LowerCase(text); }
  std::string operator()(const StripAccentsNormalizer&) const {
    return Without(text, IsCombiningMark);
  }

  std::string operator()(const StripNormalizer& strip) const {
    if (!strip.text.empty()) {
      std::string_view rest = text;
      while (strip.left && rest.starts_with(strip.text)) rest.remove_prefix(strip.text.size());
      while (strip.right && rest.ends_with(strip.text)) rest.remove_suffix(strip.text.size());
      return std::string(rest);
    }
    size_t begin = text.size();
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = ReadUtf8(text, at);
      const size_t next = at + static_cast<size_t>(c.bytes);
      if (!IsUnicodeSpace(c.code)) {
        begin = std::min(begin, at);
        end = next;
      }
      at = next;
    }
    if (end == 0) return strip.left || strip.right ? "" : std::string(text);
    if (!strip.left) begin = 0;
    if (!strip.right) end = text.size();
    return std::string(text.substr(begin, end - begin));
  }

  std::string operator()(const PrependNormalizer& prepend) const {
    return text.empty() ? "" : prepend.text + std::string(text);
  }

  std::string operator()(const ReplaceNormalizer& replace) const {
    std::string out;
    size_t at = 0;
    for (;;) {
      const size_t found = text.find(replace.from, at);
      if (found == std::string_view::npos) break;
      size_t end = found + replace.from.size();
      size_t count = 1;
      while (replace.whole_run && text.substr(end).starts_with(replace.from)) {
        end += replace.from.size();
        ++count;
      }
      out += text.substr(at, found - at);
      out += replace.whole_run && count == 1 ? replace.from : replace.to;
      at = end;
    }
    out += text.substr(at);
    return out;
  }

  std::string operator()(const Charsmap& map) const { return map.Apply(text); }
};

}  // namespace

std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) out = std::visit(Step{out}, step);
  return out;
}

}  // namespace weft
