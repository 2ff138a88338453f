#include "coordinator/scheduler/link_levels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(LinkLevel, StepsByAFifth) {
  EXPECT_EQ(LinkLevel(2e9), LinkLevel(1e9) + 4);
  EXPECT_EQ(LinkLevel(1e9), LinkLevel(1.02e9));
  EXPECT_GT(LinkLevel(1.3e9), LinkLevel(1e9));
  EXPECT_EQ(LinkLevel(0), 0);
}

TEST(LinkLevels, JoinsWorkersByTheFastestWayBetweenThem) {
  const LinkLevels levels({{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}},
                          {{"c", "b", 9}, {"a", "b", 5}, {"a", "c", 3}, {"d", "elsewhere", 9}});
  ASSERT_THAT(levels.tiers(), SizeIs(3)) << "a worker that is not there counts nothing";
  EXPECT_EQ(levels.tiers()[0].level, 9);
  EXPECT_THAT(levels.tiers()[0].group_of, ElementsAre(0, 1, 1, 3));
  EXPECT_EQ(levels.tiers()[1].level, 5);
  EXPECT_THAT(levels.tiers()[1].group_of, ElementsAre(0, 0, 0, 3)) << "d was not measured";
  EXPECT_TRUE(levels.Reaches(levels.tiers()[0], {1, 2}));
  EXPECT_FALSE(levels.Reaches(levels.tiers()[0], {0, 1}));
  EXPECT_TRUE(levels.Reaches(levels.tiers()[1], {0, 1}));
  EXPECT_FALSE(levels.Reaches(levels.tiers()[1], {0, 2})) << "measured to be slower";
  EXPECT_TRUE(levels.Reaches(levels.tiers()[2], {0, 1, 2}));
}

}  // namespace
}  // namespace weft::coordinator
