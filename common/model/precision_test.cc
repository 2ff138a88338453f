#include "common/model/precision.h"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "common/spec/plan.h"
#include "common/spec/train_spec.h"

namespace weft {
namespace {

template <class Spec>
std::set<std::string> Choices(std::string_view field_name) {
  std::set<std::string> names;
  const Spec spec;
  Spec::Fields(spec, [&](const Field& field, const auto&) {
    if (field.name == field_name) names.insert(field.choices.begin(), field.choices.end());
  });
  return names;
}

TEST(PrecisionOf, KnowsEachNameThatJobsAndPlansMayHave) {
  std::set<std::string> names;
  for (const PrecisionRecipe* recipe : AllPrecisions()) {
    names.insert(std::string(recipe->name));
    EXPECT_EQ(&PrecisionOf(recipe->name), recipe);
  }
  EXPECT_EQ(Choices<Plan>("precision"), names);
  names.insert("auto");  // which a plan decides
  EXPECT_EQ(Choices<TrainSpec>("precision"), names);
  EXPECT_EQ(FindPrecision("fp7"), nullptr);
}

}  // namespace
}  // namespace weft
