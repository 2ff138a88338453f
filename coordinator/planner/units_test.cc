#include "coordinator/planner/units.h"

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

TEST(Units, AreReadable) {
  EXPECT_EQ(HumanSeconds(0), "0 s");
  EXPECT_EQ(HumanSeconds(250e-6), "250 us");
  EXPECT_EQ(HumanSeconds(0.0351), "35.1 ms");
  EXPECT_EQ(HumanSeconds(1.254), "1.25 s");
  EXPECT_EQ(HumanSeconds(1234), "1234 s");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(999.9), "1 K");
  EXPECT_EQ(HumanCount(124'439'808), "124 M");
  EXPECT_EQ(HumanCount(1.5576e9), "1.56 G");
}

TEST(Units, ComponentsAddUpToTheTotal) {
  const TimeBreakdown time{1, 2, 4, 8, 16, 32};
  double seconds = 0;
  for (const TimeComponent& part : Components(time)) seconds += part.seconds;
  EXPECT_EQ(seconds, StepSeconds(time));
}

}  // namespace
}  // namespace weft::planner
