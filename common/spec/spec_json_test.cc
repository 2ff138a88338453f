#include "common/spec/spec_json.h"

#include <functional>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/attempt_spec.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/spec_defaults.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

struct Inner {
  int64_t size = 3;
  std::string colour = "red";
  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("size", "How large.").Unit("bytes").Range(1, 10), self.size);
    visit(Field("colour", "Which.").OneOf({"red", "green"}), self.colour);
  }
};

struct Outer {
  std::string name;
  bool flag = true;
  double ratio = 0.25;
  std::optional<double> limit;
  Inner inner;
  std::vector<Inner> list;
  std::map<std::string, int64_t> counts;
  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Its name.").Required().Range(1, 8), self.name);
    visit(Field("flag", "A switch."), self.flag);
    visit(Field("ratio", "A share.").Range(0, 1), self.ratio);
    visit(Field("limit", "A bound, if any."), self.limit);
    visit(Field("inner", "A part."), self.inner);
    visit(Field("list", "Parts.").Range(0, 2), self.list);
    visit(Field("counts", "Numbers by name.").Range(0, 5), self.counts);
  }
};

Result<Outer> Read(const std::string& text) {
  return FromJson<Outer>(*ParseJson(text));
}
std::string Error(const std::string& text) {
  Result<Outer> outer = Read(text);
  EXPECT_FALSE(outer.ok()) << text;
  return outer.ok() ? "" : outer.status().message();
}

TEST(SpecJson, AbsentFieldsKeepTheirDefaults) {
  Result<Outer> outer = Read(R"({"name": "a"})");
  ASSERT_TRUE(outer.ok());
  EXPECT_TRUE(outer->flag);
  EXPECT_EQ(outer->ratio, 0.25);
  EXPECT_FALSE(outer->limit.has_value());
  EXPECT_EQ(outer->inner.size, 3);
}

TEST(SpecJson, ReadsBackWhatItWrites) {
  Result<Outer> outer = Read(
      R"({"name": "a", "flag": false, "ratio": 1, "limit": 2.5, "inner": {"size": 1e1},
          "list": [{"colour": "green"}, {}], "counts": {"x": 5}})");
  ASSERT_TRUE(outer.ok()) << outer.status().ToString();
  EXPECT_EQ(outer->inner.size, 10);
  EXPECT_EQ(outer->list[0].colour, "green");
  EXPECT_EQ(outer->counts.at("x"), 5);
  Json json = ToJson(*outer);
  Result<Outer> again = FromJson<Outer>(json);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(ToJson(*again), json);
  EXPECT_EQ(json["limit"], 2.5);
  EXPECT_FALSE(ToJson(Outer{}).contains("limit"));
}

TEST(SpecDefaults, OfEveryFieldCount) {
  EXPECT_TRUE(HasDefaults(Outer()));
  const auto changed = [](const std::function<void(Outer&)>& change) {
    Outer outer;
    change(outer);
    return !HasDefaults(outer);
  };
  EXPECT_TRUE(changed([](Outer& o) { o.flag = false; }));
  EXPECT_TRUE(changed([](Outer& o) { o.limit = 0; }));
  EXPECT_TRUE(changed([](Outer& o) { o.inner.colour = "green"; }));
  EXPECT_TRUE(changed([](Outer& o) { o.list.resize(1); }));
  EXPECT_TRUE(changed([](Outer& o) { o.counts["a"] = 0; }));
  Outer one, other;
  one.list.resize(2);
  other.list = one.list;
  EXPECT_TRUE(SameFields(one, other));
  other.list[1].size = 4;
  EXPECT_FALSE(SameFields(one, other));
}

TEST(SpecJson, UnknownFieldsNameTheNearest) {
  EXPECT_EQ(Error(R"({"nam": "a"})"), "nam is not a known field; did you mean 'name'?");
  EXPECT_EQ(Error(R"({"name": "a", "inner": {"sise": 1}})"),
            "inner.sise is not a known field; did you mean 'size'?");
  EXPECT_EQ(Error(R"({"name": "a", "inner": {"q": 1}})"),
            "inner.q is not a known field; known here: size colour");
  EXPECT_EQ(Error(R"({"name": "a", "list": [{}, {"sizes": 1}]})"),
            "list[1].sizes is not a known field; did you mean 'size'?");
}

TEST(SpecJson, MissingAndMistypedFieldsAreNamed) {
  EXPECT_EQ(Error("{}"), "required field name is missing: Its name.");
  EXPECT_EQ(Error(R"({"name": 5})"), "name must be a string, not the number 5");
  EXPECT_EQ(Error(R"({"name": "a", "flag": "true"})"),
            "flag must be a boolean, not the string \"true\"");
  EXPECT_EQ(Error(R"({"name": "a", "inner": {"size": 2.5}})"),
            "inner.size must be an integer, not the number 2.5");
  EXPECT_EQ(Error(R"({"name": "a", "inner": []})"), "inner must be an object, not a list");
  EXPECT_EQ(Error(R"({"name": "a", "list": {}})"), "list must be a list of object, not an object");
  EXPECT_EQ(Error(R"({"name": "a", "ratio": null})"), "ratio must be a number, not null");
  EXPECT_THAT(Error("[]"), HasSubstr("must be an object, not a list"));
}

TEST(SpecJson, ValuesOutOfRangeSayWhatIsLegal) {
  EXPECT_EQ(Error(R"({"name": "a", "inner": {"size": 11}})"),
            "inner.size is 11, but must be 1 to 10 bytes");
  EXPECT_EQ(Error(R"({"name": "a", "ratio": -0.5})"), "ratio is -0.5, but must be 0 to 1");
  EXPECT_EQ(Error(R"({"name": ""})"), "name has 0 characters, but must have 1 to 8");
  EXPECT_EQ(Error(R"({"name": "a", "list": [{}, {}, {}]})"),
            "list has 3 items, but must have 0 to 2");
  EXPECT_EQ(Error(R"({"name": "a", "counts": {"x": 6}})"), "counts.x is 6, but must be 0 to 5");
  EXPECT_EQ(Error(R"({"name": "a", "inner": {"colour": "gren"}})"),
            "inner.colour is 'gren', but must be one of red | green; did you mean 'green'?");
}

TEST(SpecJson, HugeNumbersAreRefusedNotWrapped) {
  for (const char* number : {"9223372036854775808", "18446744073709551615", "1e300", "-1e300"}) {
    EXPECT_THAT(Error(R"({"name": "a", "counts": {"x": )" + std::string(number) + "}}"),
                HasSubstr("counts.x"));
  }
}

TEST(SpecJson, LongHostileTextDoesNotFillTheMessage) {
  std::string key(1 << 20, 'k');
  EXPECT_LT(Error(R"({"name": "a", ")" + key + R"(": 1})").size(), 300u);
  EXPECT_LT(Error(R"({"name": "a", "flag": ")" + key + R"("})").size(), 300u);
  EXPECT_LT(Error(R"({"name": "a", "inner": {"colour": ")" + key + R"("}})").size(), 300u);
  EXPECT_LT(Error(R"({"name": "a", "counts": {")" + key + R"(": 6}})").size(), 300u);
  EXPECT_LT(Error(R"({"name": "a", "counts": {")" + key + R"(": "x"}})").size(), 300u);
}

TEST(NearestName, FindsMisspellingsAndParts) {
  std::vector<std::string> known = {"warmup_steps", "weight_decay", "beta1"};
  EXPECT_EQ(NearestName("warmup", known), "warmup_steps");
  EXPECT_EQ(NearestName("weigth_decay", known), "weight_decay");
  EXPECT_EQ(NearestName("beta2", known), "beta1");
  EXPECT_EQ(NearestName("completely_else", known), "");
  EXPECT_EQ(NearestName("", known), "");
}

TEST(DescribeFields, ListsEveryLeafInDeclaredOrder) {
  std::vector<FieldReference> rows = DescribeFields<Outer>();
  std::vector<std::string> paths;
  for (const FieldReference& row : rows) paths.push_back(row.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"name", "flag", "ratio", "limit", "inner.size",
                                             "inner.colour", "list", "list[].size", "list[].colour",
                                             "counts"}));
  EXPECT_EQ(rows[0].default_value, "required");
  EXPECT_EQ(rows[3].default_value, "none");
  EXPECT_EQ(rows[4].default_value, "3");
  EXPECT_EQ(rows[4].unit, "bytes");
  EXPECT_EQ(rows[4].legal, "1 to 10");
  EXPECT_EQ(rows[5].legal, "red | green");
  EXPECT_EQ(rows[6].type, "list of object");
}

/// Every field of every spec can be written, read back, and is documented in one whole sentence.
template <class T>
void CheckSpec() {
  for (const FieldReference& row : DescribeFields<T>()) {
    ASSERT_FALSE(row.doc.empty()) << row.path;
    EXPECT_EQ(row.doc.back(), '.') << row.path;
  }
}

TEST(Specs, EveryFieldIsDocumented) {
  CheckSpec<JobSpec>();
  CheckSpec<PlanReport>();
  CheckSpec<ClusterProfile>();
  CheckSpec<AttemptSpec>();
}

TEST(Specs, APlanSurvivesTheTripThroughText) {
  Plan plan;
  plan.mesh.data = 4;
  plan.block_memory_policy = {"keep", "recompute"};
  plan.rank_workers = {"a", "a", "b", "b"};
  plan.prediction.step_seconds = 1.0 / 3;
  plan.prediction.memory_per_rank.activations_bytes = (int64_t{1} << 53) + 1;
  Result<Plan> back = FromJson<Plan>(*ParseJson(ToJson(plan).dump()));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(ToJson(*back), ToJson(plan));
  EXPECT_EQ(back->prediction.step_seconds, 1.0 / 3);
  EXPECT_EQ(back->prediction.memory_per_rank.activations_bytes, (int64_t{1} << 53) + 1);
}

}  // namespace
}  // namespace weft
