#include "common/model/coarse_chain.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "common/model/in_flight_chain.h"
#include "common/model/offloading_chain.h"
#include "common/model/testing/chains.h"

namespace weft {
namespace {

using testing::Follow;
using testing::Followed;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Blocks as a transformer has them (some may drop what is inside attention), and what is above
/// them.
std::vector<ChainStage> Blocks(int64_t count, bool two_ways) {
  ChainStage block = testing::Stage(1, 2, 1, 10, 3);
  if (two_ways) {
    block.modes.push_back({RematStep::Kind::kAttention, 7, 3, 0.25});
  }
  std::vector<ChainStage> chain(static_cast<size_t>(count), block);
  chain.push_back(testing::Stage(0, 0, 1, 1, 1));
  return chain;
}

int64_t BytesOfAll(const std::vector<ChainStage>& chain) {
  int64_t most = 0;
  for (const ChainStage& stage : chain) {
    most += stage.modes.front().saved_bytes + stage.modes.front().passing_bytes;
  }
  return most;
}

// The bound that coarse_chain.h states.
TEST(CoarseChainTest, IsAsFastAsTheWholeChainIsWithoutTheMemoryOfOneGroup) {
  for (const bool two_ways : {false, true}) {
    for (const int64_t count : {24, 48, 96}) {
      const std::vector<ChainStage> chain = Blocks(count, two_ways);
      const int64_t all = BytesOfAll(chain);
      const OptimalChain exact(chain, all, all);
      for (const int64_t group : {2, 4, 8}) {
        const CoarseChain coarse = Coarsen(chain, (count + 1 + group - 1) / group);
        const OptimalChain optimal(coarse.stages, all, all);
        const int64_t kept = group * chain.front().modes.front().saved_bytes;
        for (int64_t bytes = 0; bytes <= all; ++bytes) {
          const double seconds = optimal.Seconds(bytes);
          ASSERT_GE(seconds, exact.Seconds(bytes)) << count << " by " << group << ": " << bytes;
          if (bytes < kept) continue;
          ASSERT_LE(seconds, exact.Seconds(bytes - kept))
              << count << " by " << group << ": " << bytes;
          if (count == 96 && bytes >= all / 8) {
            ASSERT_LE(seconds, 1.03 * exact.Seconds(bytes)) << group << ": " << bytes;
          }
        }
      }
    }
  }
}

TEST(CoarseChainTest, SchedulesTakeWhatTheCoarseChainSaysBlockByBlock) {
  int schedules = 0;
  for (const int64_t count : {21, 24}) {
    std::vector<ChainStage> chain = Blocks(count, true);
    // Nothing trains the first ones, which keep nothing.
    for (size_t i = 0; i < 5; ++i) chain[i] = {1, 0, 1, 3, {{RematStep::Kind::kKeep, 0, 3, 0}}};
    const CoarseChain coarse = Coarsen(chain, 8);
    const int64_t all = BytesOfAll(chain);
    const OptimalChain optimal(coarse.stages, all, all);
    for (int64_t bytes = 0; bytes <= all; ++bytes) {
      const auto schedule = optimal.Schedule(bytes);
      if (!schedule) continue;
      const RematPlan fine = Refine(*schedule, coarse);
      const Followed followed = Follow(chain, fine);
      EXPECT_NEAR(followed.seconds, optimal.Seconds(bytes), 1e-9);
      EXPECT_LE(followed.peak, bytes);
      const auto read = ParseRemat(RematOperations(fine), count + 1);
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(*read, fine);
      ++schedules;
    }
  }
  EXPECT_GT(schedules, 100);
}

TEST(CoarseChainTest, GroupsAreOffloadedWhole) {
  const std::vector<ChainStage> chain = Blocks(24, false);
  const CoarseChain coarse = Coarsen(chain, 7);
  const int64_t all = BytesOfAll(chain);
  const double link = 0.05;  // seconds a byte: what a block keeps takes half of its forward pass
  OffloadingChain offloading(coarse.stages, all, all, {link});
  const int64_t bytes = all / 3;
  const RematPlan fine = Refine(offloading.Schedule(bytes).value(), coarse);
  EXPECT_GT(SentBlocks(fine), 0);
  EXPECT_LE(Follow(chain, fine, link).peak, bytes);
  const auto read = ParseRemat(RematOperations(fine), std::ssize(chain));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, fine);
}

TEST(CoarseChainTest, ChainsThatAreShortEnoughStayAsTheyAre) {
  const std::vector<ChainStage> chain = Blocks(12, true);
  const CoarseChain coarse = Coarsen(chain, 13);
  EXPECT_EQ(coarse.stages, chain);
  const RematPlan plan = OptimalChain(chain, 60, 60).Schedule(60).value();
  EXPECT_EQ(Refine(plan, coarse), plan);
}

TEST(CoarseChainTest, ARequestToStopEndsTheSearchForSchedules) {
  const std::vector<ChainStage> chain = Blocks(12, true);
  const int64_t all = BytesOfAll(chain);
  std::stop_source source;
  source.request_stop();
  const std::stop_token stop = source.get_token();
  EXPECT_EQ(OptimalChain(chain, all, all, stop).Seconds(all), kInfinity);
  EXPECT_EQ(OptimalChain(chain, all, all, stop).Schedule(all), std::nullopt);
  EXPECT_EQ(InFlightChain(chain, all, 40, stop).Schedule(2 * all, 2), std::nullopt);
  EXPECT_EQ(OffloadingChain(chain, all, 40, {0.1}, stop).Schedule(all), std::nullopt);
  EXPECT_NE(OffloadingChain(chain, all, 40, {0.1}).Schedule(all), std::nullopt);
}

}  // namespace
}  // namespace weft
