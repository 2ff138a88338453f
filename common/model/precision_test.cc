#include "common/model/precision.h"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "common/spec/cluster_spec.h"
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

TEST(FindFormat, KnowsThoseWhoseRatesAreMeasured) {
  const std::set<std::string> rates = Choices<GemmRate>("precision");
  for (const PrecisionRecipe* recipe : AllPrecisions()) {
    const ProductFormat* format = recipe->block_products;
    if (format == nullptr) continue;
    EXPECT_EQ(FindFormat(format->rate_name), format);
    EXPECT_TRUE(rates.contains(std::string(format->rate_name))) << format->name;
  }
  EXPECT_EQ(FindFormat("bf16"), nullptr) << "is a type";
}

TEST(FormatBlocksOf, LeavesDenseRecipesAlone) {
  TrainSpec train;
  train.fp8.bf16_first_blocks = 2;
  train.fp8.bf16_last_blocks = 1;
  EXPECT_EQ(FormatBlocksOf(kBf16Precision, train).Of(12), 12);
  EXPECT_EQ(FormatBlocksOf(PrecisionOf("fp8"), train).Of(12), 9);
}

}  // namespace
}  // namespace weft
