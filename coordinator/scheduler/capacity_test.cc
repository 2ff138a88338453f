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

TEST(CapacityPool, PlacesWhateverHasRoomAndNothingElse) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const ClusterProfile cluster = Machines(1 + static_cast<int>(random() % 4), 8);
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
