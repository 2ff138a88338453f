#include "worker/daemon/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::daemon {
namespace {

std::vector<std::string> Split(const std::string& bytes, size_t piece, size_t max_bytes) {
  std::vector<std::string> lines;
  LineSplitter splitter(max_bytes, [&](std::string line) { lines.push_back(std::move(line)); });
  for (size_t at = 0; at < bytes.size(); at += piece) splitter.Feed(bytes.substr(at, piece));
  splitter.Finish();
  return lines;
}

TEST(LineSplitter, GivesTheSameLinesHoweverTheBytesArrive) {
  std::vector<std::string> expected{"one", "", "three", "no end"};
  for (size_t piece : {1, 2, 3, 100}) {
    EXPECT_EQ(Split("one\n\nthree\r\nno end", piece, 100), expected) << piece;
  }
  EXPECT_TRUE(Split("", 1, 100).empty());
  EXPECT_EQ(Split("x\n", 1, 100), std::vector<std::string>{"x"});
}

TEST(LineSplitter, CutsALineThatIsTooLong) {
  std::vector<std::string> expected{"abcd", "efgh", "i"};
  for (size_t piece : {1, 5, 100}) EXPECT_EQ(Split("abcdefghi\n", piece, 4), expected) << piece;
}

TEST(ToUtf8, KeepsValidTextAndReplacesTheRest) {
  for (const char* valid : {"", "plain", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(ToUtf8(valid), valid);
  }
  struct Case {
    const char* bytes;
    const char* text;
  };
  for (const Case& c : {Case{"\xFF", "?"}, Case{"a\x80z", "a?z"}, Case{"\xC0\xAF", "??"},
                        Case{"\xED\xA0\x80", "???"}, Case{"\xF4\x90\x80\x80", "????"},
                        Case{"\xE2\x82", "??"}, Case{"\xC3", "?"}}) {
    EXPECT_EQ(ToUtf8(c.bytes), c.text);
  }
}

}  // namespace
}  // namespace weft::daemon
