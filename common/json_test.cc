#include "common/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ParseJson, ReadsEveryKindOfValue) {
  Result<Json> json = ParseJson(R"({"a": [1, -2.5, true, null, "x\u00e9\ud83d\ude42"], "b": {}})");
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  EXPECT_EQ((*json)["a"][4], "xé🙂");
  EXPECT_EQ((*json)["b"], Json::object());
}

TEST(ParseJson, RefusesWhatIsNotExactlyOneValue) {
  for (std::string_view bad :
       {"", " ", "{", "[1,]", "{\"a\":1,}", "1 2", "nul", "'a'", "{a: 1}", "NaN", "-Infinity",
        "1e999", "\"\\ud800\"", "\"\xff\"", "\xff\xfe{", "\"a\nb\"", "// c\n1"}) {
    Result<Json> json = ParseJson(bad);
    ASSERT_FALSE(json.ok()) << bad;
    EXPECT_EQ(json.status().code(), StatusCode::kInvalid) << bad;
  }
  EXPECT_FALSE(ParseJson(std::string_view("1\0", 2)).ok());
}

TEST(ParseJson, SaysWhereTheTextIsWrongInCleanText) {
  EXPECT_THAT(ParseJson("{\n  \"a\": tru }").status().message(), HasSubstr("line 2"));
  std::string message = ParseJson("\"" + std::string(100000, 'a') + "\xff").status().message();
  EXPECT_LT(message.size(), 300u);
  EXPECT_EQ(message.find('\xff'), std::string::npos);
}

TEST(ParseJson, RefusesRepeatedKeys) {
  EXPECT_THAT(ParseJson(R"({"a": 1, "a": 2})").status().message(),
              HasSubstr("repeats the key \"a\""));
  EXPECT_FALSE(ParseJson(R"({"b": [{"a": {"a": 1}, "a": 2}]})").ok());
  EXPECT_THAT(ParseJson(R"({"a": 1, "\u0061": 2})").status().message(),
              HasSubstr("repeats the key \"a\""));
  EXPECT_TRUE(ParseJson(R"({"a": {"a": [{"a": 1}, {"a": 2}]}})").ok());
  EXPECT_TRUE(ParseJson(R"({"a:{": "}]:\\", "\"": ":[{\"", "": {"\\": [":"]}})").ok());
}

TEST(ParseJson, BoundsNestingAndSize) {
  auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(64)).ok());
  EXPECT_THAT(ParseJson(nested(65)).status().message(), HasSubstr("deeper than 64"));
  EXPECT_FALSE(ParseJson(nested(2'000'000)).ok());
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(objects).ok());
  EXPECT_THAT(ParseJson("[1234567]", {.bytes = 8}).status().message(), HasSubstr("at most 8"));
}

TEST(Quoted, MakesOneLineOfAnything) {
  EXPECT_EQ(Quoted("a\"b\n\x1b"), R"("a\"b\n\u001b")");
  EXPECT_EQ(Quoted("naïve"), "\"naïve\"");
  EXPECT_EQ(Quoted("\x7f\xc2\x9b\x31m\xc2\xa0"), "\"\\u007f\\u009b1m\xc2\xa0\"");
  EXPECT_EQ(Quoted("a\xff"), "\"a\xef\xbf\xbd\"");  // U+FFFD
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc\"");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(Document, LocatesWhatItKnows) {
  Document document{Json(), "job.yaml", {{"train.steps", 12}}};
  EXPECT_EQ(document.Locate("train.steps"), "job.yaml:12: train.steps");
  EXPECT_EQ(document.Locate("train"), "job.yaml: train");
  EXPECT_EQ((Document{}.Locate("train")), "train");
  EXPECT_EQ((Document{}.Locate("")), "");
}

}  // namespace
}  // namespace weft
