#include "coordinator/planner/chain_cache.h"

#include <thread>

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft::planner {
namespace {

constexpr int64_t kSlots = 40;
constexpr int64_t kUnit = 8;

/// A chain of random stages, each with one mode.
std::vector<ChainStage> RandomChain(uint32_t seed) {
  PhiloxStream random({seed, 0, 0});
  const auto pick = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random.Next() % static_cast<uint64_t>(most));
  };
  std::vector<ChainStage> stages;
  for (int i = 0; i < 6; ++i) {
    const int64_t result = pick(20);
    stages.push_back({static_cast<double>(pick(5)),
                      static_cast<double>(pick(9)),
                      result,
                      pick(4),
                      {{RematStep::Kind::kKeep, result + pick(30), pick(4), 0}}});
  }
  return stages;
}

ChainName NameOf(uint32_t seed, bool offloading) {
  ChainName name{.stages = RandomChain(seed), .bytes = kUnit * kSlots, .slots = kSlots};
  if (offloading) name.link_seconds_per_byte = 0.1;
  return name;
}

std::optional<RematPlan> ByItself(const ChainName& name, int64_t bytes) {
  if (!name.link_seconds_per_byte) {
    return OptimalChain(name.stages, name.bytes, name.slots).Schedule(bytes);
  }
  const ChainLink link{*name.link_seconds_per_byte};
  return OffloadingChain(name.stages, name.bytes, name.slots, link).Schedule(bytes);
}

TEST(ChainCache, SchedulesAreThoseOfEachChainByItself) {
  ChainCache cache;
  int schedules = 0;
  // More than it keeps, and each asked for again.
  for (int round = 0; round < 2; ++round) {
    for (uint32_t seed = 0; seed < 12; ++seed) {
      for (const bool offloading : {false, true}) {
        const ChainName name = NameOf(seed, offloading);
        for (int64_t bytes = 0; bytes <= name.bytes; bytes += 4 * kUnit) {
          const auto found = cache.At(name)->Schedule(bytes);
          EXPECT_EQ(found, ByItself(name, bytes)) << seed << ", " << bytes;
          schedules += found ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(schedules, 100);
}

TEST(ChainCache, ChainsThatAreStillInUseOutliveTheBooksInterest) {
  ChainCache cache;
  const ChainName name = NameOf(0, true);
  const auto chain = cache.At(name);
  EXPECT_EQ(cache.At(name), chain) << "found once";
  for (uint32_t seed = 1; seed < 20; ++seed) cache.At(NameOf(seed, true));
  EXPECT_NE(cache.At(name), chain) << "forgotten";
  EXPECT_EQ(chain->Schedule(name.bytes), ByItself(name, name.bytes));
}

TEST(ChainCache, SeveralThreadsMayAskOnAnyNumberOfThreads) {
  ChainCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (uint32_t i = 0; i < 24; ++i) {
        const ChainName name = NameOf((i + static_cast<uint32_t>(t)) % 12, i % 2 == 0);
        EXPECT_EQ(cache.At(name)->Schedule(name.bytes / 2), ByItself(name, name.bytes / 2));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::planner
