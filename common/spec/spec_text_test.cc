#include "common/spec/spec_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

struct Everything {
  std::string text;
  double number = 0;
  int64_t integer = 0;
  bool flag = false;
  std::optional<std::string> absent;
  std::optional<int64_t> present = 3;
  std::vector<double> numbers;
  std::vector<std::string> none;
  std::map<std::string, int64_t> map;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("text", "."), self.text);
    visit(Field("number", "."), self.number);
    visit(Field("integer", "."), self.integer);
    visit(Field("flag", "."), self.flag);
    visit(Field("absent", "."), self.absent);
    visit(Field("present", "."), self.present);
    visit(Field("numbers", "."), self.numbers);
    visit(Field("none", "."), self.none);
    visit(Field("map", "."), self.map);
  }
};

TEST(SpecText, IsTheJsonOfTheSpec) {
  JobSpec spec;
  spec.name = "a";
  spec.data.train = {"b", "c"};
  spec.optimizer.learning_rate = 1.0 / 3;
  spec.phases.resize(2);
  EXPECT_EQ(Json::parse(ToJsonText(spec)), ToJson(spec));
}

TEST(SpecText, HoldsAnyValue) {
  using Limits = std::numeric_limits<int64_t>;
  Everything value;
  value.numbers = {
      0, -0.0, 1, -2.5, 1e300, 5e-324, 0.1, 1e15, 1e16, 1.5e-7, 1e100, -1e21, 123456789012345680.0};
  value.map = {{"", Limits::min()}, {"a \"key\"", Limits::max()}};
  for (const char* text :
       {"", "plain", "\"\\/", "\n\t\x01\x1f", "\x7f", "h\xc3\xb6he", "\xf0\x9f\x98\x80"}) {
    value.text = text;
    value.flag = !value.flag;
    const std::string json = ToJsonText(value);
    EXPECT_EQ(Json::parse(json), ToJson(value)) << json;
    EXPECT_TRUE(Json::parse(json)["numbers"][0].is_number_float());
  }
  EXPECT_EQ(Json::parse(ToJsonText(Everything()))["none"], Json::array());
}

TEST(SpecText, HasNullForWhatIsNoNumber) {
  Everything value;
  value.number = std::numeric_limits<double>::infinity();
  value.numbers = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(Json::parse(ToJsonText(value)), Json::parse(ToJson(value).dump()));
}

}  // namespace
}  // namespace weft
