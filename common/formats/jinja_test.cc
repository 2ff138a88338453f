// The interpreter against jinja2 (testdata/make_chat_templates.py), and its bounds.
#include "common/formats/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/json.h"
#include "common/rng.h"

namespace weft::jinja {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Variables = std::vector<std::pair<std::string, Value>>;

Result<std::string> Print(const std::string& source, const Variables& variables = {},
                          const RenderOptions& options = {}) {
  Result<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  Result<Rendered> rendered = parsed->Render(variables, options);
  if (!rendered.ok()) return rendered.status();
  return rendered->text;
}

std::string Refusal(const std::string& source, const Variables& variables = {}) {
  const Result<std::string> text = Print(source, variables);
  EXPECT_FALSE(text.ok()) << source << " printed " << *text;
  EXPECT_EQ(text.status().code(), StatusCode::kInvalid);
  return text.status().message();
}

struct Golden {
  Variables variables;
  Json cases;
};

Golden Load() {
  const std::string path =
      std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/chat_templates/jinja.json";
  const Json json = *ParseJson(*ReadFile(Env::Posix(), path));
  Golden golden{.variables = {}, .cases = json["cases"]};
  for (const auto& [name, value] : json["variables"].items()) {
    golden.variables.emplace_back(name, *Value::FromJson(value.get<std::string>()));
  }
  return golden;
}

TEST(Jinja, PrintsWhatJinja2Prints) {
  const Golden golden = Load();
  int printed = 0;
  for (const Json& each : golden.cases) {
    if (each.contains("error")) continue;
    const std::string source = each["template"];
    const Result<std::string> text = Print(source, golden.variables);
    ASSERT_TRUE(text.ok()) << source << "\n" << text.status().ToString();
    EXPECT_EQ(*text, each["text"].get<std::string>()) << source;
    ++printed;
  }
  EXPECT_GT(printed, 50);
}

TEST(Jinja, RefusesWhatJinja2Refuses) {
  const Golden golden = Load();
  int refused = 0;
  for (const Json& each : golden.cases) {
    if (!each.contains("error")) continue;
    EXPECT_THAT(Refusal(each["template"], golden.variables), StartsWith("line "));
    ++refused;
  }
  EXPECT_GT(refused, 30);
}

TEST(Jinja, ErrorsNameTheLineAndWhatIsWrong) {
  EXPECT_EQ(Refusal("a\n{{ missing.x }}"), "line 2: 'missing' is undefined");
  EXPECT_EQ(Refusal("{% if true %}\n\n{{ 'a' | upper | nope }}{% endif %}"),
            "line 3: no filter 'nope' is known");
  EXPECT_EQ(Refusal("{% for x in [1] %}\n{{ x + 'a' }}\n{% endfor %}"),
            "line 2: the operator + does not take a value of type int and one of type str");
  EXPECT_EQ(Refusal("{{ raise_exception('only ' ~ 2) }}"),
            "line 1: the template refuses the conversation: only 2");
  EXPECT_EQ(Refusal("\n{% if x %}"),
            "line 2: '{% endif %}' is expected, but the end of the "
            "template follows");
  EXPECT_THAT(Refusal("{% include 'x' %}"), HasSubstr("no statement 'include' is known"));
  EXPECT_THAT(Refusal("{% for x in [] recursive %}{% endfor %}"), HasSubstr("recursive loops"));
  EXPECT_THAT(Refusal("{% for x in [1] %}{% macro f() %}{% endmacro %}{% endfor %}"),
              HasSubstr("a macro is defined within a loop"));
  EXPECT_THAT(Refusal("{% set x = namespace() %}{{ x }}"), HasSubstr("cannot be printed"));
  EXPECT_THAT(Refusal("{% for x in [1] %}{% set y = loop %}{% endfor %}"),
              HasSubstr("hint: loop.index"));
}

TEST(Jinja, MarksWhatIsGenerated) {
  const Result<Template> parsed = Template::Parse(
      "a{% for x in 'bc' %}-{% generation %}<{{ x }}>{% endgeneration %}{% endfor %}d");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_TRUE(parsed->marks_generation());
  const Result<Rendered> rendered = parsed->Render({});
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->text, "a-<b>-<c>d");
  using Span = std::pair<size_t, size_t>;
  EXPECT_THAT(rendered->generation, ::testing::ElementsAre(Span(2, 5), Span(6, 9)));
  EXPECT_FALSE(Template::Parse("{{ 1 }}")->marks_generation());
  // Where it goes is not known yet.
  EXPECT_THAT(Refusal("{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}"),
              HasSubstr("{% generation %} within a macro"));
}

TEST(Jinja, TheDayIsThatOfTheOptions) {
  RenderOptions options;
  options.now.tm_year = 124;
  options.now.tm_mon = 6;
  options.now.tm_mday = 26;
  EXPECT_EQ(*Print("{{ strftime_now('%d %b %Y') }}", {}, options), "26 Jul 2024");
}

TEST(Jinja, JsonKeepsTheOrderOfKeys) {
  const Result<Value> value = Value::FromJson(R"( {"b": 1, "a": {"d": "\u00e9", "c": -0.5}} )");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*Print("{{ x | tojson }}", {{"x", *value}}), R"({"b": 1, "a": {"d": "é", "c": -0.5}})");
  EXPECT_THAT(Value::FromJson(R"({"a": 1, "a": 2})").status().message(), HasSubstr("repeats"));
  EXPECT_FALSE(Value::FromJson("[1] 2").ok());
  EXPECT_FALSE(Value::FromJson("[NaN]").ok());
  EXPECT_FALSE(Value::FromJson("18446744073709551615").ok());
}

TEST(Jinja, BoundsHold) {
  // Steps.
  EXPECT_THAT(Refusal("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}"
                      "{% endfor %}"),
              HasSubstr("too many steps"));
  // Texts, lists and their depth.
  EXPECT_THAT(Refusal("{{ 'x' * 1000000000 }}"), HasSubstr("a text of more than"));
  EXPECT_THAT(Refusal("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}"
                      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
              HasSubstr("a text of more than"));
  EXPECT_THAT(Refusal("{% set ns = namespace(l=[1, 2]) %}{% for i in range(60) %}"
                      "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}"),
              HasSubstr("a list or mapping of more than"));
  EXPECT_THAT(Refusal("{% set ns = namespace(l=[]) %}{% for i in range(100) %}"
                      "{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(Refusal("{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}"),
              HasSubstr("a text of more than"));
  EXPECT_THAT(Refusal("{{ [1] * 100000000 }}"), HasSubstr("repeated too often"));
  // The stack.
  EXPECT_THAT(Refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("nested too deeply"));
  const size_t many = 100000;
  EXPECT_THAT(Refusal("{{ " + std::string(many, '(') + "1" + std::string(many, ')') + " }}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(Refusal("{{ " + std::string(many, '-') + "1 }}"), HasSubstr("too many signs"));
  std::string sum = "1", nots, blocks, attributes = "x";
  for (size_t i = 0; i < many; ++i) {
    sum += "+1";
    nots += "not ";
    blocks += "{% if 1 %}";
    attributes += ".y";
  }
  EXPECT_THAT(Refusal("{{ " + sum + " }}"), HasSubstr("levels"));
  EXPECT_THAT(Refusal("{{ " + nots + "1 }}"), HasSubstr("too many 'not'"));
  EXPECT_THAT(Refusal(blocks), HasSubstr("blocks nested too deeply"));
  EXPECT_THAT(Refusal("{{ " + attributes + " }}"), HasSubstr("levels"));
  // Numbers.
  EXPECT_THAT(Refusal("{{ 9223372036854775807 + 1 }}"), HasSubstr("too large"));
  EXPECT_THAT(Refusal("{{ 99999999999999999999 }}"), HasSubstr("out of range"));
  EXPECT_EQ(*Print("{{ (-9223372036854775807 - 1) // 1 }}"), "-9223372036854775808");
  EXPECT_THAT(Refusal("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("too large"));
  EXPECT_EQ(*Print("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(Jinja, AnyBytesAreRefusedOrPrinted) {
  const Golden golden = Load();
  PhiloxStream random({7, 0, SiteHash("jinja_test")});
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string source = golden.cases[random.Below(golden.cases.size())]["template"];
    for (uint64_t i = 0; i <= random.Below(4); ++i) {
      const size_t at = random.Below(source.size() + 1);
      switch (random.Below(3)) {
        case 0:
          source.insert(at, 1, "{}%#|'\"()[]-+.,:x0 \n\xff"[random.Below(21)]);
          break;
        case 1:
          source.erase(at, 1 + random.Below(3));
          break;
        default:
          source.insert(at, source.substr(random.Below(source.size() + 1), random.Below(9)));
      }
      if (source.empty()) source = "x";
    }
    const Result<std::string> text = Print(source, golden.variables, {.steps = 100000});
    if (text.ok()) continue;
    ++refused;
    EXPECT_EQ(text.status().code(), StatusCode::kInvalid) << source;
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace weft::jinja
