#include "common/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Json Value(std::string_view text) {
  Result<Document> document = ParseYaml(text, "t.yaml");
  EXPECT_TRUE(document.ok()) << document.status().ToString() << "\n" << text;
  return document.ok() ? document->value : Json("(refused)");
}

std::string Error(std::string_view text) {
  Result<Document> document = ParseYaml(text, "t.yaml");
  EXPECT_FALSE(document.ok());
  if (document.ok()) return "";
  EXPECT_EQ(document.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(document.status().message(), HasSubstr("t.yaml"));
  EXPECT_LT(document.status().message().size(), 500u);
  return document.status().message();
}

TEST(ParseYaml, ReadsScalarsByTheCoreSchema) {
  EXPECT_EQ(Value("3"), Json(3));
  EXPECT_EQ(Value("-3"), Json(-3));
  EXPECT_EQ(Value("+3"), Json(3));
  EXPECT_EQ(Value("1_000_000"), Json(1000000));
  EXPECT_EQ(Value("1e3"), Json(1000.0));
  EXPECT_EQ(Value("3.0e-4"), Json(3e-4));
  EXPECT_EQ(Value("true"), Json(true));
  EXPECT_EQ(Value("null"), Json());
  EXPECT_EQ(Value("~"), Json());
  for (const char* text : {"yes", "no", "on", "v1", "1.2.3", "2024-01-31", "+-3", "--3", "1__0",
                           "_1", "e5", "-", "1e999", "12px"}) {
    if (std::string_view(text) == "-") continue;  // a list in YAML
    EXPECT_EQ(Value(text), Json(text));
  }
  EXPECT_EQ(Value("'3'"), Json("3"));
  EXPECT_EQ(Value("\"true\""), Json("true"));
  EXPECT_EQ(Value("!!str 3"), Json("3"));
}

TEST(ParseYaml, KeepsTheLineOfEveryField) {
  Result<Document> document =
      ParseYaml("name: a\n\ntrain:\n  steps: 5\n  list:\n    - 1\n    - 2\n", "t");
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(document->lines.at("name"), 1);
  EXPECT_EQ(document->lines.at("train"), 3);
  EXPECT_EQ(document->lines.at("train.steps"), 4);
  EXPECT_EQ(document->lines.at("train.list[1]"), 7);
}

TEST(ParseYaml, ReadsJsonAsItIs) {
  std::string json =
      "{\n\t\"a\": [1, 2.5, \"x\\/y\", \"\\ud83d\\ude42\"],\n\t\"b\":{\"c\":null}\n}\n";
  EXPECT_EQ(Value(json), *ParseJson(json));
  EXPECT_EQ(Value("{\"a\":1,\"b\":\"2\"}"), *ParseJson("{\"a\":1,\"b\":\"2\"}"));
  EXPECT_THAT(Error("{\n\t\"a\": 1,\n\t\"a\": 2\n}"), HasSubstr("t.yaml"));
}

TEST(ParseYaml, CopiesAliases) {
  EXPECT_EQ(Value("a: &x [1, 2]\nb: *x\n"), Json::parse(R"({"a": [1, 2], "b": [1, 2]})"));
}

TEST(ParseYaml, RefusesWhatIsNotOneDocument) {
  EXPECT_THAT(Error(""), HasSubstr("is empty"));
  EXPECT_THAT(Error("a: 1\n---\nb: 2\n"), HasSubstr("more than one"));
  EXPECT_THAT(Error(std::string_view("a: 1\0", 5)), HasSubstr("binary"));
  // A text of ISO 8859-1, and an escape that makes such a character of itself.
  EXPECT_THAT(Error("a: 1\nb: caf\xe9\n"), HasSubstr(":2: bytes that are not UTF-8"));
  EXPECT_TRUE(ParseYaml("a: \"caf\\xe9\"\n", "F").ok());
  EXPECT_THAT(Error(","), HasSubstr("more than one"));
  EXPECT_THAT(Error("a: 1\nb: [1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(Error("a: 1\n b: 2\n"), HasSubstr("t.yaml:2"));
  EXPECT_THAT(Error("a: *nowhere"), HasSubstr("not valid YAML"));
  EXPECT_THAT(Error("a: \"open"), HasSubstr("not valid YAML"));
}

TEST(ParseYaml, RefusesKeysThatAreRepeatedOrNotStrings) {
  EXPECT_THAT(Error("a: 1\nb: 2\na: 3\n"), HasSubstr("t.yaml:3: a is given twice"));
  EXPECT_THAT(Error("m:\n  a: 1\n  a: 3\n"), HasSubstr("t.yaml:3: m.a is given twice"));
  EXPECT_THAT(Error("? [1]\n: 2\n"), HasSubstr("not a string"));
  EXPECT_THAT(Error(std::string(1000, 'k') + ": 1\n" + std::string(1000, 'k') + ": 1\n"),
              HasSubstr("given twice"));
}

TEST(ParseYaml, SurvivesCyclesAndExplodingAliases) {
  EXPECT_THAT(Error("&a [*a]"), HasSubstr("nested deeper"));
  EXPECT_THAT(Error("&a {x: 1, y: [*a, *a, *a, *a]}"), HasSubstr("nested deeper"));
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    std::string alias = "*a" + std::to_string(i - 1);
    std::string name = "a" + std::to_string(i);
    laughs += name + ": &" + name + " [" + alias;
    for (int j = 1; j < 10; ++j) laughs += ", " + alias;
    laughs += "]\n";
  }
  EXPECT_THAT(Error(laughs), HasSubstr("expands to more than 32 MiB"));
  // One long string many times, and a long key above many values: few nodes, many bytes.
  std::string copies = "a: &a " + std::string(1 << 20, 'x') + "\nb:\n";
  for (int i = 0; i < 10000; ++i) copies += "- *a\n";
  EXPECT_THAT(Error(copies), HasSubstr("expands to more than 32 MiB"));
  std::string paths = "\"" + std::string(1000, 'k') + "\": [1";
  for (int i = 0; i < 200000; ++i) paths += ",1";
  EXPECT_THAT(Error(paths + "]"), HasSubstr("expands to more than 32 MiB"));
}

TEST(ParseYaml, SurvivesNestingOfAnyKind) {
  for (size_t depth : {size_t{40}, size_t{600}, size_t{100'000}}) {
    std::string maps, questions, blocks;
    for (size_t i = 0; i < depth; ++i) {
      maps += "{a: ";
      questions += "? ";
      blocks += "- ";
    }
    EXPECT_THAT(Error(std::string(depth, '[') + std::string(depth, ']')),
                HasSubstr("nested deeper"));
    EXPECT_THAT(Error(maps + "1" + std::string(depth, '}')), HasSubstr("nested deeper"));
    Error(questions + "1");
    EXPECT_THAT(Error(blocks + "1"), HasSubstr("nested deeper"));
    Error(std::string(depth, '['));
  }
}

TEST(ParseYaml, BoundsTheSizeOfTheText) {
  EXPECT_THAT(Error(std::string((size_t{4} << 20) + 1, 'a')), HasSubstr("at most"));
}

TEST(ParseYaml, SurvivesRandomBytes) {
  PhiloxStream random({1, 0, 0});
  const std::string_view alphabet = "ab:-?[]{},&*!|>'\"%@`#~ \t\n\r01.\xff\xc3\xa9\xef\xbb\xbf\x01";
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(40); n > 0; --n) text += alphabet[random.Below(alphabet.size())];
    Result<Document> document = ParseYaml(text, "t.yaml");
    if (document.ok()) (void)document->value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

TEST(ToYaml, ReadsBackToTheSameValue) {
  PhiloxStream random({2, 0, 0});
  const std::vector<std::string> words = {"",
                                          "a",
                                          "null",
                                          "~",
                                          "true",
                                          "3",
                                          "3.5",
                                          "1e5",
                                          "1_000",
                                          "yes",
                                          "- a",
                                          "a: b",
                                          "#c",
                                          " a ",
                                          "a\nb",
                                          "'",
                                          "\"",
                                          "\\",
                                          "{",
                                          "[x]",
                                          "*x",
                                          "&x",
                                          "!x",
                                          "%x",
                                          "@x",
                                          "é🙂",
                                          "\t",
                                          "a\r\n",
                                          "?",
                                          ":",
                                          "---",
                                          "...",
                                          "<<",
                                          "-",
                                          "=",
                                          "\x01z",
                                          "a #",
                                          "NULL",
                                          "True",
                                          "0x10",
                                          "|",
                                          ">",
                                          ",",
                                          "a\n ",
                                          "\xc2\x85",
                                          "\xef\xbb\xbf"
                                          "x"};
  auto word = [&] { return words[random.Below(words.size())]; };
  for (int i = 0; i < 500; ++i) {
    Json object = Json::object();
    for (uint64_t n = random.Below(4) + 1; n > 0; --n) {
      Json list = Json::array();
      for (uint64_t m = random.Below(4); m > 0; --m) list.push_back(word());
      object[word()] = list;
      object[word()] = word();
      object[word()] = {{word(), static_cast<int64_t>(random.Next64())}, {word(), random.Normal()}};
    }
    object["flags"] = {true, false, nullptr, Json::object(), Json::array()};
    std::string yaml = ToYaml(object);
    Result<Document> back = ParseYaml(yaml, "t.yaml");
    ASSERT_TRUE(back.ok()) << back.status().ToString() << "\n" << yaml;
    ASSERT_EQ(back->value, object) << yaml;
  }
}

TEST(JobYaml, ErrorsCarryFileAndLine) {
  auto error = [](std::string_view text) {
    Result<Document> document = ParseYaml(text, "job.yaml");
    EXPECT_TRUE(document.ok()) << document.status().ToString();
    Result<JobSpec> job = FromJson<JobSpec>(*document);
    EXPECT_FALSE(job.ok());
    return job.status().message();
  };
  EXPECT_EQ(error("name: a\ndata:\n  train: [x]\ntrain:\n  step: 5\n"),
            "job.yaml:5: train.step is not a known field; did you mean 'steps'?");
  EXPECT_EQ(error("name: a\ndata:\n  train: [x]\ntrain:\n  steps: five\n"),
            "job.yaml:5: train.steps must be an integer, not the string \"five\"");
  EXPECT_EQ(error("name: a\ndata:\n  train: [x]\nmodel:\n  layers: -1\n"),
            "job.yaml:5: model.layers is -1, but must be 0 to 1024");
  EXPECT_THAT(error("data:\n  train: [x]\n"), HasSubstr("required field name is missing"));
  EXPECT_THAT(error("name: a\ndata:\n  validation: [x]\n"),
              HasSubstr("job.yaml:2: data: required field data.train is missing"));
}

}  // namespace
}  // namespace weft
