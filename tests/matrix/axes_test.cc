// The axes of the matrix cover every registered technique.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "common/spec/spec_json.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"

namespace weft::testing {
namespace {

TEST(MatrixAxes, EveryRegisteredTechniqueIsTrained) {
  const std::vector<Combination> trained = CoveringSet(0);
  for (const TechniqueCost* technique : TechniqueCosts()) {
    EXPECT_TRUE(std::any_of(
        trained.begin(), trained.end(),
        [&](const Combination& combination) { return technique->Asked(JobOf(combination)); }))
        << "no job of the matrix asks for " << technique->name()
        << "; hint: add a choice that asks for it, and that a small job can have, to "
           "TechniqueAxes() of "
           "tests/matrix/techniques.cc";
  }
}

// What makes a choice reach its technique is checked nowhere else.
TEST(MatrixAxes, EachChoiceChangesTheJob) {
  for (size_t axis = 0; axis < Axes().size(); ++axis) {
    for (size_t choice = 1; choice < Axes()[axis].size(); ++choice) {
      Combination combination(Axes().size(), 0);
      const Json plain = ToJson(JobOf(combination));
      combination[axis] = choice;
      EXPECT_NE(ToJson(JobOf(combination)), plain) << Axes()[axis][choice].name;
    }
  }
}

}  // namespace
}  // namespace weft::testing
