"""Writes unicode_tables.cc next to this file from the Unicode character database.

Run: python make_unicode_tables.py [/usr/share/unicode]   (Debian package unicode-data)
"""

import pathlib
import sys


def categories(folder):
    """Maps the first letter of the general category to its code points."""
    members = {"L": set(), "N": set()}
    first = None
    for line in (folder / "UnicodeData.txt").read_text().splitlines():
        fields = line.split(";")
        code, name, kind = int(fields[0], 16), fields[1], fields[2][0]
        if name.endswith(", First>"):
            first = code
            continue
        code_points = range(first, code + 1) if name.endswith(", Last>") else [code]
        if kind in members:
            members[kind].update(code_points)
    return members


def white_space(folder):
    code_points = set()
    for line in (folder / "PropList.txt").read_text().splitlines():
        span, _, rest = line.partition(";")
        if rest.split("#")[0].strip() != "White_Space":
            continue
        first, _, last = span.strip().partition("..")
        code_points.update(range(int(first, 16), int(last or first, 16) + 1))
    return code_points


def ranges(code_points):
    spans = []
    for code in sorted(code_points):
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return spans


def table(name, spans):
    lines, line = [], "   "
    for first, last in spans:
        item = f" {{{first:#x}, {last:#x}}},"
        if len(line) + len(item) > 98:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    body = "\n".join(lines)
    return f"constexpr Range {name}[] = {{\n{body}\n}};\n"


folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/unicode")
version = (folder / "PropList.txt").read_text().split("\n")[0].split("-")[1][: -len(".txt")]
letters_numbers = categories(folder)
out = f"""// Written by make_unicode_tables.py from Unicode {version}. Do not edit.
#include "common/formats/unicode_tables.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace weft {{
namespace {{

struct Range {{
  char32_t first;
  char32_t last;
}};

// clang-format off
{table("kLetters", ranges(letters_numbers["L"]))}
{table("kNumbers", ranges(letters_numbers["N"]))}
{table("kSpaces", ranges(white_space(folder)))}// clang-format on

template <size_t size>
constexpr bool Contains(const Range (&ranges)[size], char32_t code) {{
  const Range* after = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                        [](char32_t c, const Range& r) {{ return c < r.first; }});
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}}

constexpr CharClass Search(char32_t code) {{
  if (Contains(kLetters, code)) return CharClass::kLetter;
  if (Contains(kNumbers, code)) return CharClass::kNumber;
  if (Contains(kSpaces, code)) return CharClass::kSpace;
  return CharClass::kOther;
}}

constexpr size_t kDirect = 0x400;
constexpr std::array<CharClass, kDirect> kDirectClasses = [] {{
  std::array<CharClass, kDirect> classes{{}};
  for (size_t i = 0; i < kDirect; ++i) classes[i] = Search(static_cast<char32_t>(i));
  return classes;
}}();

}}  // namespace

CharClass ClassOf(char32_t code) {{
  return code < kDirect ? kDirectClasses[code] : Search(code);
}}

}}  // namespace weft
"""
(pathlib.Path(__file__).parent / "unicode_tables.cc").write_text(out)
