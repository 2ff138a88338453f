#include "common/text.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ClipText, LeavesPrintableTextAlone) {
  EXPECT_EQ(ClipText(""), "");
  EXPECT_EQ(ClipText("naïve 日本 🙂"), "naïve 日本 🙂");
  EXPECT_EQ(ClipText("abcdef", 6), "abcdef");
}

TEST(ClipText, CutsBetweenCharacters) {
  EXPECT_EQ(ClipText("abcdefgh", 7), "abcd...");
  EXPECT_EQ(ClipText("ab日本日本", 7), "ab...");  // a character of three bytes has no room
}

TEST(ClipText, ReplacesWhatATerminalOrAProtocolWouldChokeOn) {
  EXPECT_EQ(ClipText("a\nb\x1b[0m\x7f"), "a?b?[0m?");
  EXPECT_EQ(ClipText("\xff\xc0\x80x"), "???x");     // never legal; overlong NUL
  EXPECT_EQ(ClipText("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(ClipText("\xf4\x90\x80\x80"), "????");  // past U+10FFFF
  EXPECT_EQ(ClipText("\xe2\x82"), "??");            // cut short
  EXPECT_EQ(ClipText(std::string_view("a\0b", 3)), "a?b");
}

TEST(AsciiLowerCase, LeavesEverythingButCapitalsAlone) {
  EXPECT_EQ(AsciiLowerCase("Data.JSONL_@[`{9"), "data.jsonl_@[`{9");
  EXPECT_EQ(AsciiLowerCase("ÄÉ"), "ÄÉ");  // bytes of other letters
  EXPECT_EQ(AsciiLowerCase(""), "");
}

TEST(FormatNumber, WritesAsPrintfDoes) {
  EXPECT_EQ(FormatNumber("%.1f %%", 12.34), "12.3 %");
  EXPECT_EQ(FormatNumber("%+.3g", 1e-9), "+1e-09");
}

}  // namespace
}  // namespace weft
