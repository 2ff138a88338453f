#include "common/model/optimal_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include <gtest/gtest.h>

#include "common/model/testing/chains.h"
#include "common/rng.h"

namespace weft {
namespace {

using testing::AllSchedules;
using testing::Follow;
using testing::Followed;
using testing::RandomChain;
using testing::Stage;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(OptimalChainTest, IsTheFastestOfAllSchedulesWithinEveryBudget) {
  PhiloxStream random({11, 0, 0});
  for (int trial = 0; trial < 60; ++trial) {
    const bool two_ways = trial % 2 == 1;
    auto chain = RandomChain(random, 2 + trial % (two_ways ? 3 : 4), two_ways);
    // Some have runs of equal stages, which the search takes together.
    if (trial % 3 == 1) chain.assign(chain.size(), chain.front());
    if (trial % 3 == 2) chain.insert(chain.begin() + 1, chain.front());
    const int64_t last = std::ssize(chain) - 1;
    constexpr int64_t kMost = 40;
    std::vector<double> fastest(kMost + 1, kInfinity);
    for (const RematPlan& plan : AllSchedules(chain, 0, last)) {
      const Followed followed = Follow(chain, plan);
      for (int64_t m = followed.peak; m <= kMost; ++m) {
        fastest[static_cast<size_t>(m)] =
            std::min(fastest[static_cast<size_t>(m)], followed.seconds);
      }
    }
    const OptimalChain optimal(chain, kMost, kMost);
    for (int64_t m = 0; m <= kMost; ++m) {
      ASSERT_EQ(optimal.Seconds(m), fastest[static_cast<size_t>(m)]) << trial << ", " << m;
      const auto schedule = optimal.Schedule(m);
      ASSERT_EQ(schedule.has_value(), optimal.Seconds(m) < kInfinity);
      if (!schedule) continue;
      const Followed followed = Follow(chain, *schedule);
      EXPECT_EQ(followed.seconds, optimal.Seconds(m));
      EXPECT_LE(followed.peak, m);
      auto read = ParseRemat(RematOperations(*schedule), last + 1);
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(*read, *schedule);
    }
  }
}

/// Least time over all orders of operations, persistent or not: a shortest path over what is
/// stored. A result may be dropped at any time.
double ShortestPath(const std::vector<ChainStage>& chain, int64_t budget) {
  const auto n = static_cast<int>(chain.size());
  // Results stored, stages that kept what they need, stages whose backward pass is still to come.
  using State = std::tuple<unsigned, unsigned, int>;
  std::map<State, double> best;
  using Entry = std::pair<double, State>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto held = [&](unsigned results, unsigned kept) {
    int64_t bytes = 0;
    for (int i = 0; i < n; ++i) {
      const ChainStage& stage = chain[static_cast<size_t>(i)];
      // What a stage keeps has its result.
      if (kept >> i & 1)
        bytes += stage.modes[0].saved_bytes;
      else if (results >> i & 1)
        bytes += stage.result_bytes;
    }
    return bytes;
  };
  const auto push = [&](double seconds, const State& state) {
    auto [it, added] = best.try_emplace(state, seconds);
    if (!added && it->second <= seconds) return;
    it->second = seconds;
    queue.push({seconds, state});
  };
  push(0, {0, 0, n});
  while (!queue.empty()) {
    const auto [seconds, state] = queue.top();
    queue.pop();
    if (best[state] < seconds) continue;
    const auto [results, kept, left] = state;
    if (left == 0) return seconds;
    for (int i = 0; i < n; ++i) {
      if (results >> i & 1) push(seconds, {results & ~(1u << i), kept, left});
    }
    for (int i = 0; i < left; ++i) {
      const ChainStage& stage = chain[static_cast<size_t>(i)];
      const bool input = i == 0 || ((results | kept) >> (i - 1) & 1);
      if (!input || (kept >> i & 1)) continue;
      if (held(results, kept) + stage.modes[0].saved_bytes + stage.modes[0].passing_bytes <=
          budget) {
        push(seconds + stage.forward_seconds, {results, kept | 1u << i, left});
      }
      // The input may give way to the result.
      for (const unsigned after :
           {results | 1u << i, (results | 1u << i) & ~(i > 0 ? 1u << (i - 1) : 0u)}) {
        if (held(after, kept) <= budget &&
            held(results & ~(i > 0 ? 1u << (i - 1) : 0u), kept) + stage.passing_bytes <= budget) {
          push(seconds + stage.forward_seconds, {after, kept, left});
        }
      }
    }
    const int last = left - 1;
    if (last >= 0 && (kept >> last & 1) && (last == 0 || ((results | kept) >> (last - 1) & 1))) {
      push(seconds + chain[static_cast<size_t>(last)].backward_seconds,
           {results & ~(1u << last), kept & ~(1u << last), last});
    }
  }
  return kInfinity;
}

TEST(OptimalChainTest, IsNeverFasterThanAnyOrderOfOperationsAndMostlyAsFast) {
  PhiloxStream random({12, 0, 0});
  int equal = 0, feasible = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const auto chain = RandomChain(random, 2 + trial % 3, false);
    const OptimalChain optimal(chain, 24, 24);
    for (int64_t m = 4; m <= 24; m += 4) {
      const double least = ShortestPath(chain, m);
      EXPECT_GE(optimal.Seconds(m), least);
      if (optimal.Seconds(m) == kInfinity) continue;
      ++feasible;
      equal += optimal.Seconds(m) == least ? 1 : 0;
      EXPECT_LE(optimal.Seconds(m), 1.5 * least);
    }
  }
  EXPECT_GT(feasible, 100);
  EXPECT_GT(equal, feasible * 4 / 5);
}

int64_t Binomial(int64_t n, int64_t k) {
  int64_t value = 1;
  for (int64_t i = 1; i <= k; ++i) value = value * (n - k + i) / i;
  return value;
}

// Where one stage at a time can keep what it needs, the least number of forward steps is that of
// binomial checkpointing: for l steps and c checkpoints, the chain's input among them, r l -
// C(c + r, r - 1) with the r for which C(c + r - 1, c) < l <= C(c + r, c) (Griewank and Walther
// 2000, "Revolve", proposition 1).
TEST(OptimalChainTest, IsBinomialCheckpointingWhereOneStageFits) {
  for (int64_t length : {1, 2, 3, 5, 9, 14}) {
    for (int64_t checkpoints : {1, 2, 3, 4}) {
      constexpr int64_t kLarge = 100;
      const std::vector<ChainStage> chain(static_cast<size_t>(length), Stage(1, 0, 1, kLarge));
      int64_t r = 0;
      while (Binomial(checkpoints + r, checkpoints) < length) ++r;
      const int64_t advances = r == 0 ? 0 : r * length - Binomial(checkpoints + r, r - 1);
      // The chain's own input is not counted; what the stage reads is.
      const int64_t budget = kLarge + checkpoints;
      const OptimalChain optimal(chain, budget, budget);
      EXPECT_EQ(optimal.Seconds(budget), static_cast<double>(length + advances))
          << length << " steps, " << checkpoints << " checkpoints";
    }
  }
}

// Chen et al. 2016: with every k-th input kept, each stage runs forward once more, or once.
TEST(OptimalChainTest, FindsSegmentsOfTheSquareRoot) {
  const std::vector<ChainStage> chain(16, Stage(1, 2, 1, 4));
  // Four segments of four: three inputs besides the first, and the four stages of one segment.
  const int64_t sublinear = 3 + 4 * 4;
  const OptimalChain optimal(chain, 16 * 4, 16 * 4);
  EXPECT_EQ(optimal.Seconds(16 * 4), 16 * 3);
  EXPECT_LE(optimal.Seconds(sublinear), 16 * 3 + 12) << "the last segment need not run again";
  double before = kInfinity;
  for (int64_t bytes = 0; bytes <= 16 * 4; ++bytes) {
    EXPECT_LE(optimal.Seconds(bytes), before);
    before = optimal.Seconds(bytes);
  }
}

TEST(OptimalChainTest, RoundsSizesUpSoThatCoarseMemoryStaysWithinTheBudget) {
  PhiloxStream random({13, 0, 0});
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<ChainStage> chain = RandomChain(random, 6, false);
    const OptimalChain exact(chain, 50, 50), coarse(chain, 50, 17);
    for (int64_t bytes : {20, 30, 50}) {
      EXPECT_GE(coarse.Seconds(bytes), exact.Seconds(bytes));
      if (const auto schedule = coarse.Schedule(bytes)) {
        EXPECT_LE(Follow(chain, *schedule).peak, bytes);
      }
    }
  }
}

}  // namespace
}  // namespace weft
