#include "coordinator/scheduler/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ne;

TEST(CapacityPool, FillsTheFullestMachineThatHoldsAJob) {
  const ClusterProfile cluster = Machines(3, 8);
  CapacityPool pool(cluster, AllFree(cluster));
  pool.Take(*pool.Place(GpuPlan(5)));
  EXPECT_THAT(pool.Place(GpuPlan(2))->rank_workers, Each("m0")) << "three are left there";
  pool.Take(*pool.Place(GpuPlan(2)));
  EXPECT_THAT(pool.Place(GpuPlan(8))->rank_workers, Each("m1"));
  // What no machine holds starts with the emptiest.
  EXPECT_THAT(pool.Place(GpuPlan(10))->rank_workers,
              ElementsAre("m1", "m1", "m1", "m1", "m1", "m1", "m1", "m1", "m2", "m2"));
  EXPECT_EQ(pool.total().gpus, 17);
  EXPECT_FALSE(pool.Place(GpuPlan(18)));
}

/// Machines of `gpus` GPUs in racks of `each`: r0, r1 and so on.
ClusterProfile Racks(int machines, int gpus, int each) {
  ClusterProfile cluster = Machines(machines, gpus);
  for (int i = 0; i < machines; ++i) {
    cluster.workers[static_cast<size_t>(i)].rack = "r" + std::to_string(i / each);
  }
  return cluster;
}

TEST(CapacityPool, KeepsAJobWithinARackWhereOneHoldsIt) {
  const ClusterProfile cluster = Racks(6, 4, 2);
  CapacityPool pool(cluster, AllFree(cluster));
  // One GPU of m1 is taken: the emptiest machines are now in three racks.
  Plan one = GpuPlan(1);
  one.rank_workers = {"m1"};
  one.rank_devices = {0};
  pool.Take(one);
  EXPECT_THAT(pool.Place(GpuPlan(7))->rank_workers,
              ElementsAre("m0", "m0", "m0", "m0", "m1", "m1", "m1"))
      << "the fullest rack that holds it";
  EXPECT_THAT(pool.Place(GpuPlan(8))->rank_workers,
              ElementsAre("m2", "m2", "m2", "m2", "m3", "m3", "m3", "m3"));
  // Two racks, the emptiest first.
  EXPECT_THAT(pool.Place(GpuPlan(12))->rank_workers, Each(Ne("m0")));
  EXPECT_TRUE(pool.Place(GpuPlan(23)));
  EXPECT_FALSE(pool.Place(GpuPlan(24)));
}

TEST(CapacityPool, GivesBackWhatItTook) {
  ClusterProfile cluster = Machines(2, 4);
  cluster.workers[1].devices[3].unusable = "XID 79";
  const CapacityPool before(cluster, AllFree(cluster));
  EXPECT_EQ(before.total().gpus, 7);
  CapacityPool pool = before;
  const Plan plan = *pool.Place(GpuPlan(7));
  pool.Take(plan);
  EXPECT_EQ(pool.total().gpus, 0);
  EXPECT_FALSE(pool.Fits(plan));
  pool.Release(plan);
  EXPECT_EQ(pool.total(), before.total());
  EXPECT_TRUE(pool.Fits(plan));
  Plan broken = GpuPlan(1);
  broken.rank_workers = {"m1"};
  broken.rank_devices = {3};
  pool.Release(broken);
  EXPECT_EQ(pool.total().gpus, 7) << "a broken GPU is none";
}

TEST(CapacityPool, AJobThatGivesAllCoresBackFindsTheMemoryThatItLeft) {
  const ClusterProfile cluster = Machines(1, 4);
  FreeMap free = AllFree(cluster);
  const Plan plan = *CapacityPool(cluster, free).Place(GpuPlan(4));
  Plan all_cores = plan;
  all_cores.threads_per_rank = cluster.workers[0].cores / 4;
  TakeCapacity(all_cores, free);
  CapacityPool pool(cluster, free);
  pool.Release(all_cores);
  EXPECT_EQ(pool.ToMap().at("m0").memory_bytes, AllFree(cluster).at("m0").memory_bytes);
}

TEST(WithCores, AreOfOwnWorkersThenOfTheFullestOneThatHasThemThenOfTheEmptiest) {
  const FreeMap free = {{"a", {2, 100}}, {"b", {8, 100}}, {"c", {4, 100}}};
  const auto cores = [&](int64_t most, const Plan* own) {
    std::map<std::string, int64_t> left;
    for (const auto& [worker, room] : WithCores(free, most, own)) {
      if (room.cores > 0) left[worker] = room.cores;
    }
    return left;
  };
  using Cores = std::map<std::string, int64_t>;
  EXPECT_EQ(cores(3, nullptr), (Cores{{"c", 3}}));
  EXPECT_EQ(cores(10, nullptr), (Cores{{"b", 8}, {"c", 2}}));
  EXPECT_EQ(cores(20, nullptr), (Cores{{"a", 2}, {"b", 8}, {"c", 4}}));
  Plan own;
  own.rank_workers = {"a"};
  EXPECT_EQ(cores(4, &own), (Cores{{"a", 2}, {"c", 2}}));
}

TEST(CapacityPool, PlacesWhateverHasRoomAndNothingElse) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const int machines = 1 + static_cast<int>(random() % 4);
    const ClusterProfile cluster = Racks(machines, 8, 1 + static_cast<int>(random() % 3));
    CapacityPool pool(cluster, AllFree(cluster));
    int64_t left = AmountOf(cluster).gpus;
    std::vector<Plan> held;
    for (int step = 0; step < 20; ++step) {
      if (random() % 3 == 0 && !held.empty()) {
        left += AmountOf(held.back()).gpus;
        pool.Release(held.back());
        held.pop_back();
        continue;
      }
      const int64_t ranks = 1 + random() % 12;
      const std::optional<Plan> plan = pool.Place(GpuPlan(ranks));
      ASSERT_EQ(plan.has_value(), ranks <= left);
      if (!plan) continue;
      ASSERT_TRUE(pool.Fits(*plan));
      std::set<std::pair<std::string, int64_t>> used;
      for (size_t rank = 0; rank < plan->rank_workers.size(); ++rank) {
        used.emplace(plan->rank_workers[rank], plan->rank_devices[rank]);
      }
      ASSERT_EQ(std::ssize(used), ranks) << "each rank has a GPU of its own";
      pool.Take(*plan);
      held.push_back(*plan);
      left -= ranks;
      ASSERT_EQ(pool.total().gpus, left);
    }
  }
}

}  // namespace
}  // namespace weft::coordinator
