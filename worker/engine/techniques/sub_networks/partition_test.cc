#include "worker/engine/techniques/sub_networks/partition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

constexpr uint64_t kSeed = 11;

TEST(Partition, GivesEachUnitToOneRankAndRanksAsManyAsCanBe) {
  for (const auto& [units, ranks] :
       {std::pair<int64_t, int64_t>{4, 2}, {4, 3}, {4, 4}, {7, 3}, {128, 5}, {1, 1}, {3072, 7}}) {
    SCOPED_TRACE(std::to_string(units) + " units of " + std::to_string(ranks));
    for (int64_t round = 0; round < 20; ++round) {
      std::vector<int> taken(static_cast<size_t>(units));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const OwnUnits own = UnitsOfRank(kSeed, round, "w", units, rank, ranks);
        ASSERT_EQ(std::ssize(own.own), units);
        EXPECT_EQ(std::count(own.own.begin(), own.own.end(), 1), own.count);
        EXPECT_GE(own.count, units / ranks);
        EXPECT_LE(own.count, (units + ranks - 1) / ranks);
        for (size_t unit = 0; unit < taken.size(); ++unit) taken[unit] += own.own[unit];
      }
      EXPECT_EQ(taken, std::vector<int>(taken.size(), 1));
    }
  }
}

TEST(Partition, IsDrawnAnewForEachRoundSeedAndWeightAndIsTheSameEachTime) {
  std::set<std::vector<uint8_t>> drawn;
  for (const uint64_t seed : {1, 2}) {
    for (int64_t round = 0; round < 10; ++round) {
      for (const char* weight : {"h.0.attn", "h.0.mlp", "h.1.mlp"}) {
        const auto own = UnitsOfRank(seed, round, weight, 64, 0, 2).own;
        EXPECT_EQ(own, UnitsOfRank(seed, round, weight, 64, 0, 2).own);
        drawn.insert(own);
      }
    }
  }
  EXPECT_EQ(drawn.size(), 2 * 10 * 3u);
}

// What ends a sub-layer adds its units up, so this is the expectation of what it computes.
TEST(Partition, AUnitCountsOnAverageAsItDoesInTheWholeNetwork) {
  constexpr int64_t kRounds = 20000;
  for (const auto& [units, ranks] : {std::pair<int64_t, int64_t>{4, 2}, {4, 3}, {7, 3}}) {
    SCOPED_TRACE(std::to_string(units) + " units of " + std::to_string(ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<double> sums(static_cast<size_t>(units));
      double scale = 0;
      for (int64_t round = 0; round < kRounds; ++round) {
        const OwnUnits own = UnitsOfRank(kSeed, round, "w", units, rank, ranks);
        scale = double{own.Scale()};
        for (size_t unit = 0; unit < sums.size(); ++unit) sums[unit] += own.own[unit] * scale;
      }
      // The deviation of a number that is `scale` in one of `scale` rounds, and 0 in the others.
      const double deviation = std::sqrt((scale - 1) / double{kRounds});
      for (const double sum : sums) EXPECT_NEAR(sum / double{kRounds}, 1, 5 * deviation);
    }
  }
}

}  // namespace
}  // namespace weft::engine
