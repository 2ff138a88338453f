#include "coordinator/membership/lease_table.h"

#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LeaseTable, RunsOutOnceAndIsGoneAfterTheMargin) {
  ManualClock clock;
  LeaseTable leases(clock, seconds(10), seconds(2));
  leases.Renew("a");
  clock.Advance(milliseconds(9999));
  EXPECT_TRUE(leases.IsValid("a"));
  EXPECT_TRUE(leases.TakeChanges().empty());
  EXPECT_EQ(leases.NextDeadline(), seconds(10));
  clock.Advance(milliseconds(1));
  EXPECT_FALSE(leases.IsValid("a"));
  auto changes = leases.TakeChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].phase, LeaseTable::Phase::kExpired);
  EXPECT_TRUE(leases.TakeChanges().empty());
  EXPECT_EQ(leases.NextDeadline(), seconds(12));
  clock.Advance(seconds(2));
  changes = leases.TakeChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].phase, LeaseTable::Phase::kGone);
  EXPECT_EQ(leases.NextDeadline(), std::nullopt);
  clock.Advance(seconds(1000));
  EXPECT_TRUE(leases.TakeChanges().empty());
}

TEST(LeaseTable, RenewalMovesTheEndAndRevivesALostWorker) {
  ManualClock clock;
  LeaseTable leases(clock, seconds(10), seconds(2));
  for (int i = 0; i < 100; ++i) {
    leases.Renew("a");
    clock.Advance(seconds(9));
    EXPECT_TRUE(leases.TakeChanges().empty());
  }
  clock.Advance(seconds(5));
  EXPECT_EQ(leases.TakeChanges().size(), 2u);
  leases.Renew("a");
  EXPECT_TRUE(leases.IsValid("a"));
  clock.Advance(seconds(11));
  EXPECT_EQ(leases.TakeChanges().size(), 1u);
}

TEST(LeaseTable, TellsSeveralLossesInOrderOfTime) {
  ManualClock clock;
  LeaseTable leases(clock, seconds(10), seconds(2));
  leases.Renew("z");
  clock.Advance(seconds(1));
  leases.Renew("a");
  clock.Advance(seconds(60));
  auto changes = leases.TakeChanges();
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].worker_id, "z");
  EXPECT_EQ(changes[1].worker_id, "a");
  EXPECT_EQ(changes[2].worker_id, "z");
  EXPECT_EQ(changes[2].phase, LeaseTable::Phase::kGone);
  EXPECT_FALSE(leases.IsValid("nobody"));
}

}  // namespace
}  // namespace weft::coordinator
