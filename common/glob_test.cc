#include "common/glob.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(GlobTest, StarsStandForAnyCharacters) {
  struct Case {
    const char* pattern;
    const char* text;
    bool matches;
  };
  for (const Case& c :
       {Case{"", "", true}, Case{"", "a", false}, Case{"*", "", true}, Case{"a", "a", true},
        Case{"a", "ab", false}, Case{"b", "ab", false}, Case{"a*", "abc", true},
        Case{"*c", "abc", true}, Case{"a*c", "ac", true}, Case{"a*c", "acb", false},
        Case{"*a*a*", "aa", true}, Case{"*a*a*", "ba", false}, Case{"h.1.*", "h.11.x", false},
        Case{"*.attn.*", "h.0.attn.c_attn.weight", true}, Case{"*ab", "aab", true},
        Case{"a.c", "abc", false}}) {
    EXPECT_EQ(GlobMatches(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
  }
}

TEST(GlobTest, AnyOfSeveralPatternsMayMatch) {
  const std::vector<std::string> patterns = {"a*", "*.c"};
  EXPECT_TRUE(MatchesAny(patterns, "ab"));
  EXPECT_TRUE(MatchesAny(patterns, "b.c"));
  EXPECT_FALSE(MatchesAny(patterns, "b.cd"));
  EXPECT_FALSE(MatchesAny({}, "a"));
}

TEST(GlobTest, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(2000, 'a')));
}

}  // namespace
}  // namespace weft
