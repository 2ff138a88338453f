#include "coordinator/recovery/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

Mesh Of(int64_t data, int64_t pipeline = 1) {
  Mesh mesh;
  mesh.data = data;
  mesh.pipeline = pipeline;
  return mesh;
}

std::vector<RankPace> Paces(const std::vector<double>& seconds) {
  std::vector<RankPace> paces;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    paces.push_back({static_cast<int64_t>(rank), "w" + std::to_string(rank / 2), seconds[rank]});
  }
  return paces;
}

TEST(SlowestRank, IsTheOneThatIsSlowerThanTheMedianOfItsGroup) {
  const auto slow = SlowestRank(Of(4), Paces({1, 1.02, 1.31, 0.98}), 1.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_EQ(slow->worker_id, "w1");
  EXPECT_NEAR(slow->ratio, 1.31, 1e-12) << "the lower one of two in the middle";
  EXPECT_THAT(slow->Text(), HasSubstr("rank 2 on worker w1 takes 1.31 times as long"));
  EXPECT_FALSE(SlowestRank(Of(4), Paces({1, 1.1, 1.19, 1}), 1.2)) << "within the rules";
}

TEST(SlowestRank, OfTwoIsMeasuredAgainstTheFasterOne) {
  const auto slow = SlowestRank(Of(2), Paces({1.3, 1}), 1.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 0);
  EXPECT_NEAR(slow->ratio, 1.3, 1e-12);
}

TEST(SlowestRank, OfAPipelineIsSoWithinItsStage) {
  // The second stage has twice the work, and so no straggler but the last rank.
  EXPECT_FALSE(SlowestRank(Of(2, 2), Paces({1, 1, 2, 2.1}), 1.2));
  const auto slow = SlowestRank(Of(2, 2), Paces({1, 1, 2, 2.6}), 1.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 3);
  EXPECT_NEAR(slow->ratio, 1.3, 1e-12);
  EXPECT_FALSE(SlowestRank(Of(1, 2), Paces({1, 2}), 1.2)) << "there is none to compare with";
}

TEST(SlowestRank, LeavesOutRanksWhosePaceIsNotKnown) {
  EXPECT_FALSE(SlowestRank(Of(3), Paces({0, 1.5, 0}), 1.2));
  const auto slow = SlowestRank(Of(3), Paces({0, 1.5, 1}), 1.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 1);
}

TEST(StragglerWatch, NamesARankOnceWhenItHasBeenSlowForLongEnough) {
  const StragglerRules rules{.ratio = 1.2, .seconds = 30};
  StragglerWatch watch;
  const auto slow = Paces({1, 1, 1.3, 1});
  EXPECT_FALSE(watch.See(Of(4), slow, 100, rules));
  EXPECT_FALSE(watch.See(Of(4), slow, 129, rules));
  const auto named = watch.See(Of(4), slow, 130, rules);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank, 2);
  EXPECT_FALSE(watch.See(Of(4), slow, 140, rules)) << "no news";
  EXPECT_TRUE(watch.named());
  EXPECT_FALSE(watch.See(Of(4), Paces({1, 1, 1, 1}), 150, rules));
  EXPECT_FALSE(watch.named()) << "it has recovered";
}

TEST(StragglerWatch, BeginsAnewWhenAnotherRankIsTheSlowest) {
  const StragglerRules rules{.ratio = 1.2, .seconds = 30};
  StragglerWatch watch;
  for (int second = 0; second <= 120; second += 20) {
    const bool even = second % 40 == 0;
    EXPECT_FALSE(
        watch.See(Of(4), even ? Paces({1, 1, 1.3, 1}) : Paces({1, 1.3, 1, 1}), second, rules))
        << "nobody holds up the others for long";
  }
}

TEST(StragglerWatch, NamesNobodyWhenThatIsTurnedOff) {
  StragglerWatch watch;
  for (int second = 0; second < 100; second += 10) {
    EXPECT_FALSE(watch.See(Of(2), Paces({1, 9}), second, {.ratio = 0, .seconds = 0}));
  }
}

}  // namespace
}  // namespace weft::coordinator
