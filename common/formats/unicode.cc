#include "common/formats/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

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

std::string ToNormalForm(std::string_view text, NormalForm form) {
  std::string valid;
  valid.reserve(text.size());
  bool ascii = true;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    ascii &= c.code < 0x80;
    AppendUtf8(valid, c.code);
    at += static_cast<size_t>(c.bytes);
  }
  if (ascii) return valid;
  int options = UTF8PROC_STABLE;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &mapped,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  WEFT_CHECK(size >= 0, "normalizing valid UTF-8 cannot fail but for memory");
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
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
