#include "common/model/offloading_chain.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "common/model/testing/chains.h"

namespace weft {
namespace {

using testing::AllSchedules;
using testing::Follow;
using testing::Followed;
using testing::RandomChain;
using testing::Stage;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMost = 40;

/// With ticks of half a second; all times of random chains are multiples of it.
ChainLink LinkOf(const std::vector<ChainStage>& chain, double seconds_per_byte) {
  int64_t most = 0;
  for (const ChainStage& stage : chain) {
    for (const auto& mode : stage.modes) most = std::max(most, mode.saved_bytes);
  }
  return {seconds_per_byte, static_cast<int64_t>(static_cast<double>(most) * seconds_per_byte * 2)};
}

/// Calls `use` with the plan and all orders of its transfers: each after the one before has
/// arrived, or `queued`, in any order that a link can have.
void ForEachTransferOrder(const RematPlan& plan, bool queued,
                          const std::function<void(RematPlan&)>& use) {
  RematPlan trial = plan;
  const auto last = std::ssize(plan) - 1;
  const std::function<void(int64_t, int64_t)> from = [&](int64_t index, int64_t before) {
    if (index == last) {
      use(trial);
      return;
    }
    RematStep& step = trial[static_cast<size_t>(index)];
    step.sent = step.fetched = -1;
    from(index + 1, before);
    int64_t least_sent = index + 1, least_fetched = index + 1;
    if (before >= 0) {
      const RematStep& other = trial[static_cast<size_t>(before)];
      if (!queued && (other.sent > index || other.fetched > index)) return;
      least_sent = std::max(least_sent, other.sent);
      least_fetched = std::max(least_fetched, other.fetched);
    }
    for (int64_t sent = least_sent; sent <= last; ++sent) {
      for (int64_t fetched = least_fetched; fetched <= last; ++fetched) {
        step.sent = sent;
        step.fetched = fetched;
        from(index + 1, index);
      }
    }
    step.sent = step.fetched = -1;
  };
  from(0, -1);
}

/// By bytes, the least time of all schedules.
std::vector<double> Fastest(const std::vector<ChainStage>& chain, double seconds_per_byte,
                            bool queued) {
  std::vector<double> fastest(kMost + 1, kInfinity);
  for (const RematPlan& plan : AllSchedules(chain, 0, std::ssize(chain) - 1)) {
    ForEachTransferOrder(plan, queued, [&](const RematPlan& trial) {
      const Followed followed = Follow(chain, trial, seconds_per_byte);
      for (int64_t m = followed.peak; m <= kMost; ++m) {
        double& least = fastest[static_cast<size_t>(m)];
        least = std::min(least, followed.seconds);
      }
    });
  }
  return fastest;
}

TEST(OffloadingChainTest, IsTheFastestOfAllSchedulesWithOneTransferAtATime) {
  PhiloxStream random({31, 0, 0});
  int sending = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const bool two_ways = trial % 2 == 1;
    const auto chain = RandomChain(random, 2 + trial / 2 % (two_ways ? 3 : 4), two_ways);
    const double rate = std::vector<double>{0.5, 1, 2, 4}[static_cast<size_t>(trial / 3 % 4)];
    const std::vector<double> fastest = Fastest(chain, rate, false);
    OffloadingChain joint(chain, kMost, kMost, LinkOf(chain, rate));
    for (int64_t m = 0; m <= kMost; ++m) {
      ASSERT_EQ(joint.Seconds(m), fastest[static_cast<size_t>(m)]) << trial << ", " << m;
      const auto schedule = joint.Schedule(m);
      ASSERT_EQ(schedule.has_value(), joint.Seconds(m) < kInfinity);
      if (!schedule) continue;
      const Followed followed = Follow(chain, *schedule, rate);
      EXPECT_EQ(followed.seconds, joint.Seconds(m)) << trial << ", " << m;
      EXPECT_LE(followed.peak, m);
      auto read = ParseRemat(RematOperations(*schedule), std::ssize(chain));
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(*read, *schedule);
      sending += Transfers(*schedule) ? 1 : 0;
    }
  }
  EXPECT_GT(sending, 100);
}

// Blocks that are alike; a transfer takes half as long again as one block: two can be sent during
// three.
TEST(OffloadingChainTest, IsCloseToTheFastestWithTransfersInAQueue) {
  PhiloxStream random({32, 0, 0});
  int equal = 0, feasible = 0;
  const auto compare = [&](const std::vector<ChainStage>& chain, double rate) {
    const std::vector<double> fastest = Fastest(chain, rate, true);
    OffloadingChain joint(chain, kMost, kMost, LinkOf(chain, rate));
    for (int64_t m = 0; m <= kMost; ++m) {
      const double least = fastest[static_cast<size_t>(m)], seconds = joint.Seconds(m);
      EXPECT_GE(seconds, least);
      EXPECT_EQ(seconds == kInfinity, least == kInfinity);
      if (seconds == kInfinity) continue;
      ++feasible;
      equal += seconds == least ? 1 : 0;
      EXPECT_LE(seconds, 1.1 * least) << m;
    }
  };
  for (int trial = 0; trial < 16; ++trial) {
    compare(RandomChain(random, 3 + trial % 3, false), trial % 3 == 0 ? 0.5 : 1);
  }
  for (const double rate : {0.5, 1.0, 1.5}) {
    compare(std::vector<ChainStage>(6, Stage(4, 8, 1, 6)), rate);
    compare(std::vector<ChainStage>(6, Stage(3, 6, 2, 5)), rate);
  }
  EXPECT_GT(feasible, 500);
  EXPECT_GT(equal, feasible * 9 / 10);
}

TEST(OffloadingChainTest, WithoutALinkItIsThePureScheduleAndWithAFastOneNothingRunsTwice) {
  PhiloxStream random({33, 0, 0});
  for (int trial = 0; trial < 20; ++trial) {
    const auto chain = RandomChain(random, 6, trial % 2 == 1);
    const OptimalChain pure(chain, kMost, kMost);
    OffloadingChain none(chain, kMost, kMost, {kInfinity});
    OffloadingChain slow(chain, kMost, kMost, {1e6, 10});
    OffloadingChain fast(chain, kMost, kMost, {0, 10});
    double all_once = 0;
    int64_t two = 0, before = 0;
    for (const ChainStage& stage : chain) {
      all_once += stage.forward_seconds + stage.backward_seconds;
      const ChainStage::Mode& mode = stage.modes.front();
      two = std::max(two, before + mode.saved_bytes + mode.passing_bytes);
      before = mode.saved_bytes;
    }
    for (int64_t m = 0; m <= kMost; ++m) {
      EXPECT_EQ(none.Seconds(m), pure.Seconds(m));
      EXPECT_EQ(none.Schedule(m), pure.Schedule(m));
      if (pure.Seconds(m) < kInfinity) {
        EXPECT_EQ(slow.Seconds(m), pure.Seconds(m));
      }
      // Two neighbours have room.
      if (m < two) continue;
      EXPECT_NEAR(fast.Seconds(m), all_once, 1e-6);
      EXPECT_EQ(ReplayedBlocks(*fast.Schedule(m)), 0);
    }
  }
}

TEST(OffloadingChainTest, MemoryAndAFasterLinkNeverMakeItSlower) {
  PhiloxStream random({34, 0, 0});
  for (int trial = 0; trial < 12; ++trial) {
    const auto chain = RandomChain(random, 7, trial % 2 == 1);
    std::vector<double> slower(kMost + 1, kInfinity);
    for (const double rate : {8.0, 4.0, 2.0, 1.0, 0.5}) {
      OffloadingChain joint(chain, kMost, kMost, LinkOf(chain, rate));
      for (int64_t m = 0; m <= kMost; ++m) {
        const double seconds = joint.Seconds(m);
        EXPECT_LE(seconds, m > 0 ? joint.Seconds(m - 1) : kInfinity);
        EXPECT_LE(seconds, slower[static_cast<size_t>(m)]) << trial << ", " << m << ", " << rate;
        slower[static_cast<size_t>(m)] = seconds;
      }
    }
  }
}

TEST(OffloadingChainTest, CoarseMemoryAndTimeStayWithinTheBudgetAndCostLittle) {
  PhiloxStream random({35, 0, 0});
  for (int trial = 0; trial < 20; ++trial) {
    const auto chain = RandomChain(random, 6, trial % 2 == 1);
    OffloadingChain exact(chain, 50, 50, LinkOf(chain, 1)), coarse(chain, 50, 50, {1, 6});
    OffloadingChain rough(chain, 50, 17, {1, 6});
    for (int64_t bytes = 10; bytes <= 50; bytes += 5) {
      if (const auto schedule = coarse.Schedule(bytes)) {
        const Followed followed = Follow(chain, *schedule, 1);
        EXPECT_LE(followed.peak, bytes);
        EXPECT_LE(followed.seconds, 1.15 * exact.Seconds(bytes));
      }
      if (const auto schedule = rough.Schedule(bytes)) {
        EXPECT_LE(Follow(chain, *schedule, 1).peak, bytes);
      }
    }
  }
}

}  // namespace
}  // namespace weft
