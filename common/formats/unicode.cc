#include "common/formats/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/check.h"
#include "common/formats/unicode_tables.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

utf8proc_category_t CategoryOf(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool InRange(char32_t code, char32_t first, char32_t last) {
  return code >= first && code <= last;
}

/// The longest compatibility decomposition of Unicode is that of U+FDFA.
constexpr size_t kLongestDecomposition = 18;

/// Puts the combining marks behind each character in canonical order: those of one class stay in
/// their order. The library's own way takes time quadratic in the length of a run.
void SortMarks(std::vector<utf8proc_int32_t>& code_points) {
  auto class_of = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (size_t begin = 0; begin < code_points.size();) {
    if (code_points[begin] < 0x300 || class_of(code_points[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < code_points.size() && class_of(code_points[end]) != 0) ++end;
    std::stable_sort(
        code_points.begin() + static_cast<ptrdiff_t>(begin),
        code_points.begin() + static_cast<ptrdiff_t>(end),
        [&](utf8proc_int32_t a, utf8proc_int32_t b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

}  // namespace

bool IsUnicodeSpace(char32_t code) {
  return ClassOf(code) == CharClass::kSpace;
}

bool IsUnicodePunctuation(char32_t code) {
  if (code < 0x80) {
    return InRange(code, '!', '/') || InRange(code, ':', '@') || InRange(code, '[', '`') ||
           InRange(code, '{', '~');
  }
  const utf8proc_category_t category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsUnicodeControl(char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  const utf8proc_category_t category = CategoryOf(code);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
}

bool IsUnicodeNumber(char32_t code) {
  return ClassOf(code) == CharClass::kNumber;
}

bool IsUnicodeWord(char32_t code) {
  switch (CategoryOf(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join controls, and the letters in circles and squares, which are alphabetic symbols.
      return InRange(code, 0x200c, 0x200d) || InRange(code, 0x24b6, 0x24e9) ||
             InRange(code, 0x1f130, 0x1f149) || InRange(code, 0x1f150, 0x1f169) ||
             InRange(code, 0x1f170, 0x1f189);
  }
}

bool IsNonspacingMark(char32_t code) {
  return CategoryOf(code) == UTF8PROC_CATEGORY_MN;
}

bool IsCombiningMark(char32_t code) {
  const utf8proc_category_t category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

void AppendLowerCase(std::string& text, char32_t code) {
  if (code == 0x130) {  // the only letter whose lower case is two code points anywhere
    text += "i\xcc\x87";
    return;
  }
  AppendUtf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

void AppendUpperCase(std::string& text, char32_t code) {
  if (code == 0xdf) {
    text += "SS";
    return;
  }
  AppendUtf8(text, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

std::string ToNormalForm(std::string_view text, NormalForm form) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  bool ascii = true;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    at += static_cast<size_t>(c.bytes);
    ascii &= c.code < 0x80;
    if (c.code < 0x80) {
      code_points.push_back(static_cast<utf8proc_int32_t>(c.code));
      continue;
    }
    std::array<utf8proc_int32_t, kLongestDecomposition> parts{};
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), decompose, nullptr);
    WEFT_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
               "no character decomposes into this many");
    code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
  }
  if (ascii) return std::string(text);
  SortMarks(code_points);
  auto size = static_cast<utf8proc_ssize_t>(code_points.size());
  if (compose) {
    size = utf8proc_normalize_utf32(
        code_points.data(), size,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    WEFT_CHECK(size >= 0, "composing code points cannot fail");
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    AppendUtf8(out, static_cast<char32_t>(code_points[static_cast<size_t>(i)]));
  }
  return out;
}

size_t GraphemeLength(std::string_view text) {
  if (text.empty()) return 0;
  Utf8Char last = ReadUtf8(text, 0);
  auto end = static_cast<size_t>(last.bytes);
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const Utf8Char next = ReadUtf8(text, end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    end += static_cast<size_t>(next.bytes);
    last = next;
  }
  return end;
}

}  // namespace weft
