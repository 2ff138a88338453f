#include "common/json_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::vector<std::pair<std::string, std::string>> Members(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> members;
  const Result<std::vector<JsonMember>> scanned = ScanJsonObject(text);
  EXPECT_TRUE(scanned.ok()) << text << ": " << scanned.status().message();
  if (!scanned.ok()) return members;
  for (const JsonMember& member : *scanned) {
    members.emplace_back(JsonKeyName(member.key), member.value);
  }
  return members;
}

TEST(JsonScan, FindsMembersWhateverTheirValuesAre) {
  EXPECT_THAT(Members(" { } "), IsEmpty());
  EXPECT_THAT(Members(R"({"a": 1e999 ,"b":[NaN,{"c":"]}\""}], "d\n" :-Infinity})"),
              ElementsAre(Pair("a", "1e999"), Pair("b", R"([NaN,{"c":"]}\""}])"),
                          Pair("d\n", "-Infinity")));
  EXPECT_THAT(Members(R"({"a":"\\","\ud800":"\ud800"})"),
              ElementsAre(Pair("a", R"("\\")"), Pair(R"(\ud800)", R"("\ud800")")));
}

TEST(JsonScan, RefusesWhatIsNoObject) {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "}",
                          "[1]",
                          "{} {}",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{,}",
                          "{a:1}",
                          "{\"a\":1",
                          "{\"a\":\"x}",
                          "{\"a\":[}",
                          "{\"a\":[1}]",
                          "{\"a\":nul}",
                          "{\"a\":1 2}",
                          "{\"a\":\"\\",
                          "{\"a\":1}x",
                          "{1:2}"}) {
    const Status status = ScanJsonObject(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << bad;
    EXPECT_THAT(status.message(), HasSubstr("not valid JSON: at column ")) << bad;
  }
  EXPECT_FALSE(ScanJsonObject("{\"a\":" + std::string(1 << 20, '[')).ok());
  EXPECT_TRUE(
      ScanJsonObject("{\"a\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}").ok());
}

TEST(JsonScan, FindsElementsOfArrays) {
  EXPECT_THAT(*ScanJsonArray(" [ 1, \"a,b\" ,[2,3], {\"x\":[]}]\n"),
              ElementsAre("1", "\"a,b\"", "[2,3]", "{\"x\":[]}"));
  EXPECT_THAT(*ScanJsonArray("[]"), IsEmpty());
  for (const char* bad : {"[", "[1,]", "[1 2]", "{}", "[1]]", ""}) {
    EXPECT_FALSE(ScanJsonArray(bad).ok()) << bad;
  }
}

TEST(JsonScan, TellsTheLineOfEveryField) {
  EXPECT_THAT(JsonLines("{\n \"a\": 1,\n \"b\": {\n  \"c\": [1,\n   2]\n }\n}\n", 32),
              UnorderedElementsAre(Pair("a", 2), Pair("b", 3), Pair("b.c", 4), Pair("b.c[0]", 4),
                                   Pair("b.c[1]", 5)));
  EXPECT_THAT(JsonLines("{\"a\":\n{\"b\":{\"c\":1}}}", 2),
              UnorderedElementsAre(Pair("a", 1), Pair("a.b", 2)));
  EXPECT_THAT(JsonLines("", 32), IsEmpty());
}

}  // namespace
}  // namespace weft
