#include "coordinator/recovery/suspicion.h"

#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

constexpr double kNow = 1.7e9;
constexpr double kHour = 3600;

TEST(Suspicion, GrowsWithFailuresAndHalvesInItsTime) {
  SuspicionTable table({.quarantine_at = 3, .half_life_seconds = 6 * kHour});
  EXPECT_EQ(table.Of("a", kNow), 0);
  ASSERT_TRUE(table.Blame("a", "job", Reason::kDeviceFailed, kNow));
  EXPECT_DOUBLE_EQ(table.Of("a", kNow), 1);
  EXPECT_DOUBLE_EQ(table.Of("a", kNow + 6 * kHour), 0.5);
  const auto record = table.Blame("a", "job", Reason::kDeviceFailed, kNow + 6 * kHour);
  ASSERT_TRUE(record);
  EXPECT_DOUBLE_EQ(record->suspicion, 1.5);
  EXPECT_EQ(record->at, kNow + 6 * kHour);
  EXPECT_EQ(table.Of("a", kNow + 100 * kHour), 0) << "long ago";
  EXPECT_EQ(table.Of("b", kNow), 0);
}

TEST(Suspicion, IsTooMuchAfterSeveralFailuresInAShortTime) {
  SuspicionTable table({.quarantine_at = 3, .half_life_seconds = 6 * kHour});
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(table.TooMuch("a", kNow)) << i;
    table.Blame("a", "job", Reason::kWorkerLost, kNow);
  }
  EXPECT_TRUE(table.TooMuch("a", kNow));
  table.Clear("a", kNow);
  EXPECT_FALSE(table.TooMuch("a", kNow));
  SuspicionTable never({.quarantine_at = 0, .half_life_seconds = 6 * kHour});
  for (int i = 0; i < 9; ++i) never.Blame("a", "job", Reason::kWorkerLost, kNow);
  EXPECT_FALSE(never.TooMuch("a", kNow));
}

TEST(Suspicion, OfAMachineTakesAJobWhoseRanksDieAgainAndAgainOnce) {
  SuspicionTable table({});
  ASSERT_TRUE(table.Blame("a", "buggy", Reason::kRankDied, kNow));
  EXPECT_FALSE(table.Blame("a", "buggy", Reason::kRankDied, kNow));
  EXPECT_FALSE(table.Blame("a", "buggy", Reason::kHung, kNow));
  EXPECT_DOUBLE_EQ(table.Of("a", kNow), 0.5);
  ASSERT_TRUE(table.Blame("a", "another", Reason::kRankDied, kNow));
  EXPECT_DOUBLE_EQ(table.Of("a", kNow), 1);
}

TEST(Suspicion, DoesNotComeOfFaultsOfTheJob) {
  SuspicionTable table({});
  for (Reason reason : {Reason::kUserError, Reason::kNumerics, Reason::kOutOfMemory,
                        Reason::kDrained, Reason::kReplanned, Reason::kCancelledByUser}) {
    EXPECT_FALSE(table.Blame("a", "job", reason, kNow)) << Name(reason);
  }
  for (const auto& [worker, suspicion] : table.All(kNow)) EXPECT_EQ(suspicion, 0) << worker;
}

TEST(Suspicion, IsLoadedAsItWasStored) {
  SuspicionTable before({}), after({});
  after.Load(*before.Blame("a", "job", Reason::kDeviceFailed, kNow));
  EXPECT_DOUBLE_EQ(after.Of("a", kNow + kHour), before.Of("a", kNow + kHour));
  EXPECT_EQ(after.All(kNow + 100 * kHour), (std::map<std::string, double>{{"a", 0}}));
}

}  // namespace
}  // namespace weft::coordinator
