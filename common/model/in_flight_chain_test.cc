#include "common/model/in_flight_chain.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/testing/chains.h"
#include "common/rng.h"

namespace weft {
namespace {

using testing::AllSchedules;
using testing::Follow;
using testing::RandomChain;
using testing::Stage;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a schedule keeps between its forward and its backward pass.
int64_t KeptBytes(const std::vector<ChainStage>& chain, const RematPlan& plan) {
  int64_t bytes = 0;
  for (const RematStep& step : plan) {
    const ChainStage& last = chain[static_cast<size_t>(step.end() - 1)];
    for (const ChainStage::Mode& mode : last.modes) {
      if (mode.kind == step.kind) bytes += mode.saved_bytes;
    }
    if (step.kind == RematStep::Kind::kSegment) bytes += last.result_bytes;
  }
  return bytes;
}

TEST(InFlightChainTest, IsTheFastestOfAllSchedulesHoweverManyPassesAreInFlight) {
  PhiloxStream random({14, 0, 0});
  for (int trial = 0; trial < 40; ++trial) {
    const bool two_ways = trial % 2 == 1;
    const auto chain = RandomChain(random, 2 + trial % (two_ways ? 3 : 4), two_ways);
    const int64_t last = std::ssize(chain) - 1;
    constexpr int64_t kMost = 48;  // enough for all of it
    const std::vector<RematPlan> all = AllSchedules(chain, 0, last);
    const InFlightChain held(chain, kMost, kMost);
    for (const int64_t passes : {1, 2, 5}) {
      std::vector<double> fastest(static_cast<size_t>(passes * kMost + 1), kInfinity);
      const auto bytes_of = [&](const RematPlan& plan) {
        return Follow(chain, plan).peak + (passes - 1) * KeptBytes(chain, plan);
      };
      for (const RematPlan& plan : all) {
        double& least = fastest[static_cast<size_t>(bytes_of(plan))];
        least = std::min(least, Follow(chain, plan).seconds);
      }
      for (size_t m = 1; m < fastest.size(); ++m) fastest[m] = std::min(fastest[m], fastest[m - 1]);
      for (int64_t m = 0; m <= passes * kMost; ++m) {
        ASSERT_EQ(held.Seconds(m, passes), fastest[static_cast<size_t>(m)])
            << trial << ", " << passes << " passes in " << m;
        const auto schedule = held.Schedule(m, passes);
        ASSERT_EQ(schedule.has_value(), held.Seconds(m, passes) < kInfinity);
        if (!schedule) continue;
        EXPECT_EQ(Follow(chain, *schedule).seconds, held.Seconds(m, passes));
        EXPECT_LE(bytes_of(*schedule), m);
      }
    }
  }
}

// What is kept counts once for each pass, and a replay once: of many passes less is kept.
TEST(InFlightChainTest, KeepsLessOfEachWhereMoreAreInFlight) {
  const std::vector<ChainStage> chain(12, Stage(1, 2, 1, 4));
  const InFlightChain held(chain, 48, 48);
  const auto kept = [&](int64_t bytes, int64_t passes) {
    return KeptBytes(chain, held.Schedule(bytes, passes).value());
  };
  EXPECT_EQ(kept(48, 1), 48);
  EXPECT_EQ(kept(4 * 48, 4), 48);
  EXPECT_LT(kept(100, 4), kept(100, 2));
  EXPECT_GT(held.Seconds(100, 8), held.Seconds(100, 4));
}

TEST(InFlightChainTest, RoundsSizesUpSoThatCoarseMemoryStaysWithinTheBudget) {
  PhiloxStream random({15, 0, 0});
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<ChainStage> chain = RandomChain(random, 6, false);
    const InFlightChain exact(chain, 50, 50), coarse(chain, 50, 17);
    for (int64_t bytes : {40, 80, 150}) {
      EXPECT_GE(coarse.Seconds(bytes, 3), exact.Seconds(bytes, 3));
      if (const auto schedule = coarse.Schedule(bytes, 3)) {
        EXPECT_LE(Follow(chain, *schedule).peak + 2 * KeptBytes(chain, *schedule), bytes);
      }
    }
  }
}

}  // namespace
}  // namespace weft
