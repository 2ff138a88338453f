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

TEST(PrecisionOf, KnowsNamesThatJobsAndPlansMayHave) {
  for (const PrecisionRecipe* recipe : AllPrecisions()) {
    const std::string name(recipe->name);
    EXPECT_EQ(&PrecisionOf(name), recipe);
    EXPECT_EQ(Choices<TrainSpec>("precision").count(name), 1u);
    EXPECT_EQ(Choices<Plan>("precision").count(name), 1u);
  }
  EXPECT_EQ(FindPrecision("fp7"), nullptr);
}

}  // namespace
}  // namespace weft
