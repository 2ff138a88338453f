#include "common/clock.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Clock, SystemTimeNeverGoesBackAndIsPlausible) {
  const Clock& clock = Clock::System();
  std::chrono::nanoseconds before = clock.Monotonic();
  EXPECT_GE(clock.Monotonic(), before);
  EXPECT_GT(clock.UnixSeconds(), 1.6e9);
}

TEST(Clock, ManualTimeMovesOnlyWhenTold) {
  ManualClock clock;
  double wall = clock.UnixSeconds();
  EXPECT_EQ(clock.Monotonic().count(), 0);
  clock.Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(clock.Monotonic(), std::chrono::milliseconds(1500));
  EXPECT_DOUBLE_EQ(clock.UnixSeconds() - wall, 1.5);
}

TEST(Durations, GoToSecondsAndBack) {
  EXPECT_EQ(ToSeconds(std::chrono::milliseconds(1500)), 1.5);
  EXPECT_EQ(ToSeconds(std::chrono::hours(2)), 7200);
  EXPECT_EQ(FromSeconds(0.25), std::chrono::milliseconds(250));
  EXPECT_EQ(FromSeconds(-1e-9), std::chrono::nanoseconds(-1));
}

TEST(SecondsSince, ReadsTheClockThatItIsGiven) {
  ManualClock clock;
  const std::chrono::nanoseconds begin = clock.Monotonic();
  clock.Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(SecondsSince(clock, begin), 1.5);
  const auto now = std::chrono::steady_clock::now();
  EXPECT_GE(SecondsSince(now), 0);
  EXPECT_GE(SecondsSince(now - std::chrono::hours(1)), 3600);
  EXPECT_LT(SecondsSince(now + std::chrono::hours(1)), 0);
}

// Expected texts from `date -u -d @SECONDS`.
TEST(FormatTime, WritesUtcWithMilliseconds) {
  EXPECT_EQ(FormatTime(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(FormatTime(951782400), "2000-02-29T00:00:00.000Z");
  EXPECT_EQ(FormatTime(1700000000.25), "2023-11-14T22:13:20.250Z");
  EXPECT_EQ(FormatTime(1699999999.9996), "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(FormatTime(-0.25), "1969-12-31T23:59:59.750Z");
}

}  // namespace
}  // namespace weft
