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

/// The workers that get ranks of `plan`, in the order of ranks.
std::vector<std::string> WorkersOf(const std::optional<Plan>& plan) {
  std::vector<std::string> workers;
  if (!plan) return workers;
  for (const std::string& worker : plan->rank_workers) {
    if (workers.empty() || workers.back() != worker) workers.push_back(worker);
  }
  return workers;
}

MeasuredLink Link(const std::string& one, const std::string& other, double rate) {
  return {one, other, LinkLevel(rate)};
}

TEST(CapacityPool, OfEqualMachinesThoseWithFasterLinksGetAJob) {
  const ClusterProfile cluster = Machines(4, 8);
  const auto place = [&](int64_t ranks, const std::vector<MeasuredLink>& links) {
    return WorkersOf(CapacityPool(cluster, AllFree(cluster), links).Place(GpuPlan(ranks)));
  };
  EXPECT_THAT(place(16, {}), ElementsAre("m0", "m1"));
  const std::vector<MeasuredLink> links = {Link("m0", "m1", 1e8), Link("m0", "m2", 1e8),
                                           Link("m1", "m2", 1e8), Link("m2", "m3", 1e9)};
  EXPECT_THAT(place(16, links), ElementsAre("m2", "m3"));
  EXPECT_THAT(place(8, links), ElementsAre("m0")) << "one machine has no links";
  EXPECT_THAT(place(24, links), ElementsAre("m0", "m1", "m2")) << "some link is slow anyway";
  // Differences of a few hundredths are noise.
  EXPECT_THAT(place(16, {Link("m0", "m1", 1e9), Link("m2", "m3", 1.03e9)}),
              ElementsAre("m0", "m1"));
  // A link that was not measured is as fast as the way over others.
  EXPECT_THAT(place(16, {Link("m0", "m3", 1e9), Link("m1", "m3", 1e9), Link("m1", "m2", 1e9)}),
              ElementsAre("m0", "m1"));
  // One that was measured to be slow is not.
  EXPECT_THAT(place(16, {Link("m0", "m1", 1e8), Link("m0", "m2", 1e9), Link("m1", "m2", 1e9)}),
              ElementsAre("m0", "m2"));
  EXPECT_THAT(place(16, {Link("m0", "gone", 1e9)}), ElementsAre("m0", "m1"));
}

TEST(CapacityPool, FasterLinksDoNotOutweighOtherDifferences) {
  const std::vector<MeasuredLink> links = {Link("m0", "m1", 1e8), Link("m2", "m3", 1e9)};
  ClusterProfile cluster = Machines(4, 8);
  Plan one = GpuPlan(1);
  one.rank_workers = {"m3"};
  CapacityPool pool(cluster, AllFree(cluster), links);
  pool.Take(one);
  EXPECT_THAT(WorkersOf(pool.Place(GpuPlan(16))), ElementsAre("m0", "m1")) << "less is free there";
  cluster.workers[3].devices[0].name = "another GPU";
  const CapacityPool mixed(cluster, AllFree(cluster), links);
  EXPECT_THAT(WorkersOf(mixed.Place(GpuPlan(16))), ElementsAre("m0", "m1"));
  // Racks that people have named go before.
  const ClusterProfile racks = Racks(6, 8, 3);
  const CapacityPool apart(racks, AllFree(racks), {Link("m3", "m4", 1e9), Link("m1", "m2", 1e8)});
  EXPECT_THAT(WorkersOf(apart.Place(GpuPlan(16))), ElementsAre("m1", "m2"));
  // What has its place is moved only when it is asked for.
  const CapacityPool same(racks, AllFree(racks), {Link("m1", "m2", 1e9)});
  Plan placed = *CapacityPool(racks, AllFree(racks)).Place(GpuPlan(16));
  EXPECT_THAT(WorkersOf(same.Place(placed)), ElementsAre("m0", "m1"));
  EXPECT_THAT(WorkersOf(same.OnFasterLinks(placed)), ElementsAre("m1", "m2"));
}

TEST(CapacityPool, OnFasterLinksAsManyMachinesHaveRoomForAsManyRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    const ClusterProfile cluster = Machines(6, 4);
    std::vector<MeasuredLink> links;
    for (int link = 0; link < 9; ++link) {
      const int one = static_cast<int>(random() % 6);
      const int other = (one + 1 + static_cast<int>(random() % 5)) % 6;
      links.push_back({"m" + std::to_string(one), "m" + std::to_string(other),
                       static_cast<int64_t>(random() % 4)});
    }
    CapacityPool plain(cluster, AllFree(cluster));
    CapacityPool pool(cluster, AllFree(cluster), links);
    for (int taken = 0; taken < 3; ++taken) {
      const Plan some = *pool.Place(GpuPlan(1 + static_cast<int64_t>(random() % 3)));
      plain.Take(some);
      pool.Take(some);
    }
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 20);
    const std::optional<Plan> plan = pool.Place(GpuPlan(ranks));
    const std::optional<Plan> before = plain.Place(GpuPlan(ranks));
    ASSERT_EQ(plan.has_value(), before.has_value());
    if (!plan) continue;
    ASSERT_TRUE(pool.Fits(*plan));
    ASSERT_EQ(WorkersOf(plan).size(), WorkersOf(before).size());
  }
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

TEST(CapacityPool, TakesWhatTheNextPlanOfAJobNeedsBeyondItsPresentOne) {
  ClusterProfile cluster = Machines(2, 0);
  for (WorkerProfile& worker : cluster.workers) {
    worker.device = "cpu";
    worker.cores = 8;
  }
  CapacityPool pool(cluster, AllFree(cluster));
  Plan held = CorePlan(3), next = CorePlan(5);
  held.rank_workers = {"m0", "m0", "m1"};
  next.rank_workers = {"m0", "m0", "m0", "m0", "elsewhere"};
  held.prediction.memory_per_rank.parameters_bytes = 10;
  next.prediction.memory_per_rank.parameters_bytes = 20;
  pool.Take(held);
  pool.TakeBeyond(held, next);
  const FreeMap free = pool.ToMap();
  EXPECT_EQ(free.at("m0").cores, 8 - 4);
  EXPECT_EQ(free.at("m0").memory_bytes, 1000 - 4 * 20);
  EXPECT_EQ(free.at("m1").cores, 8 - 1) << "until it has stopped, that is its own";
  EXPECT_EQ(free.at("m1").memory_bytes, 1000 - 10);
}

}  // namespace
}  // namespace weft::coordinator
