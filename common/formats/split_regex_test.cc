// Regular expressions of tokenizers: what they mean, what they may cost, and that hand-written code
// cuts as they do.
#include "common/formats/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/regex_dialect.h"
#include "common/formats/unicode.h"
#include "common/formats/unicode_tables.h"
#include "common/formats/utf8.h"
#include "common/formats/word_splitter.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char32_t kCodePoints = 0x110000;

SplitRegex Compiled(std::string_view regex) {
  Result<SplitRegex> compiled = SplitRegex::Compile(regex);
  EXPECT_TRUE(compiled.ok()) << regex << ": " << compiled.status().ToString();
  return *std::move(compiled);
}

std::vector<std::string> Pieces(const SplitRegex& regex, std::string_view text) {
  std::vector<std::string> pieces;
  const Status status =
      regex.ForEach(text, [&](std::string_view piece, bool) { pieces.emplace_back(piece); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return pieces;
}

std::vector<std::string> Matches(std::string_view regex, std::string_view text) {
  std::vector<std::string> matches;
  const Status status = Compiled(regex).ForEach(text, [&](std::string_view piece, bool match) {
    if (match) matches.emplace_back(piece);
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return matches;
}

/// By code point, whether a regular expression of one character matches it in `text`.
std::vector<bool> Matched(std::string_view regex, std::string_view text) {
  std::vector<bool> matched(kCodePoints);
  const Status status = Compiled(regex).ForEach(text, [&](std::string_view piece, bool match) {
    if (match) matched[ReadUtf8(piece, 0).code] = true;
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return matched;
}

std::vector<std::string> Words(WordSplit::Behavior behavior, bool invert, std::string_view text) {
  WordSplit split;
  split.kind = WordSplit::Kind::kRegex;
  split.behavior = behavior;
  split.invert = invert;
  split.regex = Compiled("-");
  std::vector<std::string> words;
  const Status status = SplitWords(std::span(&split, 1), text, true,
                                   [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return words;
}

/// Text of assigned characters of all planes, runs of the kinds that patterns tell apart, and now
/// and then a byte that is not UTF-8.
std::string RandomText(PhiloxStream& random, const SplitRegex& unassigned) {
  constexpr std::string_view kParts[] = {
      "'s",        "'LL",  "'\xc5\xbf", " ",   "  ", "\r\n",     "\t",           "a",
      "Ab",        "123",  "4",         "...", "/",  "\xc2\xa0", "\xe3\x80\x80", "\xe6\x9d\xb1",
      "e\xcc\x81", "\xff", "\xe6\x9d"};
  std::string text;
  for (uint64_t left = random.Below(40); left > 0; --left) {
    if (random.Below(3) > 0) {
      text += kParts[random.Below(std::size(kParts))];
      continue;
    }
    std::string character;
    const uint64_t plane = random.Below(4) == 0 ? 0x110000 : 0x3000;
    const auto code = static_cast<char32_t>(random.Below(plane));
    if (code >= 0xd800 && code < 0xe000) continue;
    AppendUtf8(character, code);
    bool known = true;
    EXPECT_TRUE(unassigned.ForEach(character, [&](std::string_view, bool m) { known &= !m; }).ok());
    if (known) text += character;
  }
  return text;
}

TEST(SplitRegex, HandWrittenCodeCutsAsThePatternsDo) {
  // The library's tables are of another version of Unicode: characters that it does not know stay
  // out.
  const SplitRegex unassigned = Compiled("\\p{Cn}|\\p{Co}");
  PhiloxStream random({11, 0, 0});
  for (SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kCl100k, SplitPattern::kQwen2}) {
    const SplitRegex fast = Compiled(RegexOfPattern(pattern));
    const SplitRegex slow = fast.WithoutShortcut();
    for (int round = 0; round < 4000; ++round) {
      const std::string text = RandomText(random, unassigned);
      ASSERT_EQ(Pieces(fast, text), Pieces(slow, text)) << text;
    }
  }
}

TEST(SplitRegex, TheLibraryKnowsCharactersAsOurTablesDo) {
  std::string all;
  for (char32_t code = 1; code < kCodePoints; ++code) {
    if (code < 0xd800 || code >= 0xe000) AppendUtf8(all, code);
  }
  const std::vector<bool> letter = Matched("\\p{L}", all), number = Matched("\\p{N}", all),
                          space = Matched("\\s", all), unassigned = Matched("\\p{Cn}", all);
  int differ = 0, unknown = 0;
  for (char32_t code = 1; code < kCodePoints; ++code) {
    const CharClass kind = letter[code]   ? CharClass::kLetter
                           : number[code] ? CharClass::kNumber
                           : space[code]  ? CharClass::kSpace
                                          : CharClass::kOther;
    if (kind != ClassOf(code)) ++(unassigned[code] ? unknown : differ);
  }
  EXPECT_EQ(differ, 0);
  // Letters and numbers that Unicode 15 added. PCRE2 10.42 has version 14; one that has the first
  // ideograph of extension H has them all.
  EXPECT_EQ(unknown, unassigned[0x31350] ? 4388 : 0);
}

TEST(SplitRegex, ReadsTheSyntaxOfTokenizerFiles) {
  // A + behind an interval repeats it; behind +, * and ? it forbids to give back.
  EXPECT_THAT(Matches("\\p{N}{1,3}+", "1234567 89"), ElementsAre("1234567", "89"));
  EXPECT_THAT(Matches("\\p{N}{1,3}", "1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Matches("(?>\\p{N}{1,3})", "1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Matches("a++a", "aaa"), ElementsAre());
  EXPECT_THAT(Matches("a*+a", "aaa"), ElementsAre());
  EXPECT_THAT(Matches("a?+ab", "ab aab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("xa{2}?", "xaa xa"), ElementsAre("xaa", "x"));
  EXPECT_THAT(Matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{x}", "a{x} a"), ElementsAre("a{x}"));
  // Spaces are Unicode's; U+180E is none.
  EXPECT_THAT(Matches("\\s+", "a \xc2\xa0\xe3\x80\x80\xe1\xa0\x8e\xc2\x85"),
              ElementsAre(" \xc2\xa0\xe3\x80\x80", "\xc2\x85"));
  EXPECT_THAT(Matches("[^\\S\\n]+", " \n\t\xc2\xa0"), ElementsAre(" ", "\t\xc2\xa0"));
  EXPECT_THAT(Matches("\\w+", "a_1-é\xcc\x81"), ElementsAre("a_1", "é\xcc\x81"));
  EXPECT_THAT(Matches("\\h+", "xfF09 g"), ElementsAre("fF09"));
  EXPECT_THAT(Matches("\\bab\\b", "ab cab ab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(Matches("\\u6771", "東京"), ElementsAre("東"));
  EXPECT_THAT(Matches("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(Matches("(?m:a.b)|c.d", "a\nb c\nd"), ElementsAre("a\nb"));
  EXPECT_THAT(Matches("\\p{Han}+|\\p{^Letter}", "東京1か"), ElementsAre("東京", "1"));
  EXPECT_THAT(Matches("[\\p{L}&&[^\\p{Han}]]+", "ab東c"), ElementsAre("ab", "c"));
  EXPECT_THAT(Matches("[a[bc]]+", "xabcx"), ElementsAre("abc"));
  EXPECT_THAT(Matches("[[:upper:]\\W]+", "aB -c"), ElementsAre("B -"));
  // An empty match cuts, but not twice at one place.
  EXPECT_THAT(Pieces(Compiled("(?=[A-Z])"), "aBcD"), ElementsAre("a", "", "Bc", "", "D"));
}

TEST(SplitRegex, RefusesWhatItDoesNotReadAndSaysWhere) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"(a", "a group is not closed at byte 2"},
      {"a)", "without its ( at byte 1"},
      {"[a", "a class is not closed"},
      {"*a", "nothing to repeat"},
      {"\\", "a \\ at the end"},
      {"\\K", "\\K is not supported at byte 1"},
      {"\\Qa\\E", "\\Q is not supported"},
      {"(*LIMIT_MATCH=1)a", "(* is not supported"},
      {"(?R)", "this kind is not supported"},
      {"(?x:a b)", "this kind is not supported"},
      {"a(?i)b", "other than at the start"},
      {"\\p{Nonsense}", "\\p{Nonsense}"},
      {"\\p{L", "not closed"},
      {"(?<=a+)b", "lookbehind"},
      {"[a&&]", "a class is empty"},
      {"\xff", "not UTF-8"},
      {"((a{9999}){9999})", "too"},
  };
  for (const auto& [regex, reason] : cases) {
    Result<SplitRegex> compiled = SplitRegex::Compile(regex);
    ASSERT_FALSE(compiled.ok()) << regex;
    EXPECT_EQ(compiled.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(compiled.status().message(), HasSubstr(reason));
    EXPECT_THAT(compiled.status().message(), HasSubstr("the pattern "));
  }
  EXPECT_FALSE(SplitRegex::Compile(std::string(20000, 'a')).ok());
  EXPECT_FALSE(SplitRegex::Compile(std::string(1000, '(') + std::string(1000, ')')).ok());
  EXPECT_FALSE(SplitRegex::Compile(std::string(1000, '[') + "a" + std::string(1000, ']')).ok());
}

TEST(SplitRegex, EndsAMatchThatTakesTooLong) {
  const SplitRegex hostile = Compiled("(?:a|a)+(?:a|a)+c");
  const Status status = hostile.ForEach(std::string(60, 'a') + "bc", [](std::string_view, bool) {});
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("fails at byte 0 of a text"));
  // And others still work.
  EXPECT_THAT(Pieces(hostile, "aac"), ElementsAre("aac"));
}

TEST(SplitRegex, AnyPatternAndTextAreBorne) {
  PhiloxStream random({12, 0, 0});
  constexpr std::string_view kAlphabet = "ab(|)[]{}*+?^$\\\\.-&:<>=!pdsw123,\xc3\xa9";
  for (int round = 0; round < 4000; ++round) {
    std::string regex, text;
    for (uint64_t left = random.Below(14); left > 0; --left) {
      regex += kAlphabet[random.Below(kAlphabet.size())];
    }
    for (uint64_t left = random.Below(30); left > 0; --left) {
      text +=
          random.Below(8) == 0 ? static_cast<char>(random.Below(256)) : "ab12 "[random.Below(5)];
    }
    Result<SplitRegex> compiled = SplitRegex::Compile(regex);
    if (!compiled.ok()) continue;
    std::string all;
    const Status status =
        compiled->ForEach(text, [&](std::string_view piece, bool) { all += piece; });
    if (!status.ok()) continue;
    ASSERT_EQ(all, text) << regex;
  }
}

TEST(SplitWords, PutsMatchesWhereTheBehaviorSays) {
  using Behavior = WordSplit::Behavior;
  constexpr const char* kText = "the-final--countdown";
  EXPECT_THAT(Words(Behavior::kRemoved, false, kText), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(Words(Behavior::kRemoved, true, kText), ElementsAre("-", "-", "-"));
  EXPECT_THAT(Words(Behavior::kIsolated, false, kText),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(Words(Behavior::kMergedWithPrevious, false, kText),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(Words(Behavior::kMergedWithNext, false, kText),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(Words(Behavior::kContiguous, false, kText),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(Words(Behavior::kMergedWithNext, false, "-a-"), ElementsAre("-a", "-"));
}

}  // namespace
}  // namespace weft
