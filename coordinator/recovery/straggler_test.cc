#include "coordinator/recovery/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(SlowRanks, AreSlowerThanTheMedianOfTheirGroup) {
  const auto slow = SlowRanks(Of(4), Paces({1, 1.02, 1.31, 0.98}), 1.2);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 2);
  EXPECT_EQ(slow[0].worker_id, "w1");
  EXPECT_NEAR(slow[0].ratio, 1.31, 1e-12) << "the lower one of two in the middle";
  EXPECT_THAT(slow[0].Text(), HasSubstr("rank 2 on worker w1 takes 1.31 times as long"));
  EXPECT_THAT(SlowRanks(Of(4), Paces({1, 1.1, 1.19, 1}), 1.2), IsEmpty()) << "within the rules";
}

TEST(SlowRanks, OfTwoAreMeasuredAgainstTheFasterOne) {
  const auto slow = SlowRanks(Of(2), Paces({1.3, 1}), 1.2);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 0);
  EXPECT_NEAR(slow[0].ratio, 1.3, 1e-12);
}

TEST(SlowRanks, OfAPipelineAreSoWithinTheirStage) {
  // The second stage has twice the work, and so no straggler but the last rank.
  EXPECT_THAT(SlowRanks(Of(2, 2), Paces({1, 1, 2, 2.1}), 1.2), IsEmpty());
  const auto slow = SlowRanks(Of(2, 2), Paces({1, 1, 2, 2.6}), 1.2);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_NEAR(slow[0].ratio, 1.3, 1e-12);
  EXPECT_THAT(SlowRanks(Of(1, 2), Paces({1, 2}), 1.2), IsEmpty())
      << "there is none to compare with";
}

TEST(SlowRanks, AreNotThoseWhosePaceIsNotKnown) {
  EXPECT_THAT(SlowRanks(Of(3), Paces({0, 1.5, 0}), 1.2), IsEmpty());
  const auto slow = SlowRanks(Of(3), Paces({0, 1.5, 1}), 1.2);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 1);
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

TEST(StragglerWatch, NamesOneOfSeveralThatAreByTurnsTheSlowest) {
  const StragglerRules rules{.ratio = 1.2, .seconds = 30};
  StragglerWatch watch;
  const auto at = [&](int second) {
    const bool even = second % 20 == 0;
    return watch.See(Of(4), even ? Paces({1, 1, 1.3, 1.31}) : Paces({1, 1, 1.31, 1.3}), second,
                     rules);
  };
  for (const int second : {0, 10, 20}) EXPECT_FALSE(at(second));
  const auto named = at(30);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank, 2);
  EXPECT_FALSE(at(40)) << "no news, though now the other one is slower";
  EXPECT_EQ(watch.named()->rank, 2);
  EXPECT_NEAR(watch.named()->ratio, 1.3, 1e-12) << "as last seen";
  const auto next = watch.See(Of(4), Paces({1, 1, 1, 1.3}), 50, rules);
  ASSERT_TRUE(next) << "the other one is slow still";
  EXPECT_EQ(next->rank, 3);
}

TEST(StragglerWatch, BeginsAnewWhenARankWasNotSlowOnce) {
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
