#include "worker/daemon/lease.h"

#include <gtest/gtest.h>

#include "worker/daemon/backoff.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Lease, RunsOutAMarginBeforeTheCoordinatorThinksSo) {
  ManualClock clock;
  Lease lease(clock);
  EXPECT_TRUE(lease.Expired()) << "nothing granted yet";
  lease.SetLength(seconds(8));
  lease.Renew(clock.Monotonic());
  clock.Advance(milliseconds(6999));
  EXPECT_FALSE(lease.Expired());
  clock.Advance(milliseconds(1));
  EXPECT_TRUE(lease.Expired());
}

TEST(Lease, CountsFromTheSendingOfTheAcknowledgedMessage) {
  ManualClock clock;
  Lease lease(clock);
  lease.SetLength(seconds(8));
  auto sent = clock.Monotonic();
  clock.Advance(seconds(100));  // stopped for long; the old acknowledgement is read only now
  lease.Renew(sent);
  EXPECT_TRUE(lease.Expired());
  lease.Renew(clock.Monotonic());
  EXPECT_FALSE(lease.Expired());
  lease.Renew(sent);
  EXPECT_FALSE(lease.Expired()) << "a late acknowledgement never shortens the lease";
}

TEST(Backoff, DoublesWithJitterUpToFiveSecondsAndStartsAgain) {
  constexpr std::chrono::hours kLong{1};
  Backoff backoff(7);
  double whole = 0.2;
  for (int i = 0; i < 20; ++i) {
    const double wait = backoff.Next(kLong).count();
    EXPECT_GE(wait, whole / 2);
    EXPECT_LE(wait, whole);
    whole = std::min(5.0, whole * 2);
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(kLong).count(), 0.2);
  EXPECT_NE(Backoff(1).Next(kLong), Backoff(2).Next(kLong));
}

TEST(Backoff, SeveralDialsFitIntoALease) {
  ManualClock clock;
  Lease lease(clock);
  Backoff backoff(7);
  for (int i = 0; i < 20; ++i) backoff.Next(lease.LongestBreak());
  EXPECT_GE(backoff.Next(lease.LongestBreak()), milliseconds(2500)) << "none was granted yet";
  lease.SetLength(seconds(8));
  for (int i = 0; i < 20; ++i) EXPECT_LE(backoff.Next(lease.LongestBreak()), seconds(1));
}

}  // namespace
}  // namespace weft::daemon
