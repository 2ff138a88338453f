#include "coordinator/planner/report/frontier.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<FrontierPoint> Points(const JobSpec& job, const ClusterProfile& cluster,
                                  const ClusterCosts& costs = {}) {
  Result<std::vector<FrontierPoint>> points = FrontierOf(
      job, cluster, costs, [&](const ClusterProfile& part) { return PlanJob(job, part); });
  EXPECT_TRUE(points.ok()) << points.status().message();
  return points.ok() ? *std::move(points) : std::vector<FrontierPoint>();
}

std::vector<int64_t> DevicesOf(const std::vector<FrontierPoint>& points) {
  std::vector<int64_t> devices;
  for (const FrontierPoint& point : points) devices.push_back(point.devices);
  return devices;
}

TEST(Frontier, GoesUpToAllDevicesAndNeverDown) {
  const ClusterProfile cluster{{GpuMachine("g", 4, 80 * kGiB), GpuMachine("h", 3, 80 * kGiB)}};
  JobSpec job = SmallGpt2();
  const std::vector<FrontierPoint> points = Points(job, {{cluster.workers[0]}});
  EXPECT_THAT(DevicesOf(points), ElementsAre(1, 2, 4));
  for (size_t i = 0; i < points.size(); ++i) {
    const ClusterProfile part = ClusterOfPoint(job, {{cluster.workers[0]}}, points[i]);
    EXPECT_EQ(CountDevices(part, true), points[i].devices);
    const Result<PlanReport> alone = PlanJob(job, part);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(points[i].tokens_per_second, alone->candidates[0].plan.prediction.tokens_per_second);
    if (i == 0) continue;
    EXPECT_GE(points[i].tokens_per_second, points[i - 1].tokens_per_second);
  }
  // Machines that differ are a kind each, and all together.
  EXPECT_THAT(DevicesOf(Points(job, cluster)), ElementsAre(1, 2, 4, 1, 2, 3, 1, 2, 4, 7));
}

TEST(Frontier, PlansForWholeMachinesBetweenTwoDoublings) {
  const auto counts = [](int machines, int64_t each) {
    ClusterProfile cluster;
    for (int i = 0; i < machines; ++i) {
      cluster.workers.push_back(GpuMachine("g" + std::to_string(i), each, 80 * kGiB));
    }
    const auto none = [](const ClusterProfile&) -> Result<PlanReport> {
      return ExhaustedError("nothing fits; hint: none");
    };
    return DevicesOf(*FrontierOf(SmallGpt2(), cluster, {}, none));
  };
  EXPECT_THAT(counts(8, 8), ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64));
  EXPECT_THAT(counts(5, 8), ElementsAre(1, 2, 4, 8, 16, 24, 32, 40));
  EXPECT_THAT(counts(3, 5), ElementsAre(1, 2, 4, 5, 8, 10, 15));
  EXPECT_THAT(counts(7, 1), ElementsAre(1, 2, 3, 4, 6, 7));
  // Three machines divide the batch, two and four do not.
  JobSpec job = SmallGpt2();
  job.train.global_batch = 12 * 63;
  ClusterProfile cluster;
  for (const char* name : {"a", "b", "c", "d"}) {
    cluster.workers.push_back(GpuMachine(name, 4, 80 * kGiB));
  }
  const std::vector<FrontierPoint> points = Points(job, cluster);
  ASSERT_THAT(DevicesOf(points), ElementsAre(1, 2, 4, 8, 12, 16));
  EXPECT_TRUE(points[4].on_frontier);
  EXPECT_EQ(points[4].ranks, 12);
  EXPECT_GT(points[4].tokens_per_second, 1.3 * points[3].tokens_per_second);
}

TEST(Frontier, MarksWhatNoneBeatsAndTheCheapest) {
  const ClusterProfile cluster{{CpuMachine("slow", 2, 16 * kGiB, 1),
                                CpuMachine("fast-1", 2, 16 * kGiB, 4),
                                CpuMachine("fast-2", 2, 16 * kGiB, 4)}};
  ClusterCosts costs;
  costs.machines = {{.workers = "slow", .price_per_hour = 1},
                    {.workers = "fast-*", .price_per_hour = 3}};
  const std::vector<FrontierPoint> points = Points(SmallGpt2(), cluster, costs);
  int cheapest = 0;
  for (const FrontierPoint& point : points) {
    bool beaten = false;
    for (const FrontierPoint& other : points) {
      beaten |= other.devices_used <= point.devices_used &&
                other.tokens_per_second >= point.tokens_per_second &&
                (other.devices_used < point.devices_used ||
                 other.tokens_per_second > point.tokens_per_second);
      EXPECT_FALSE(point.cheapest && point.price > other.price);
    }
    EXPECT_EQ(point.on_frontier, !beaten) << point.machines << " " << point.devices;
    cheapest += point.cheapest ? 1 : 0;
    EXPECT_DOUBLE_EQ(point.price, point.price_per_hour * point.finish_seconds / 3600);
  }
  EXPECT_EQ(cheapest, 1);
}

TEST(Frontier, SaysWhyNothingFits) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 4;
  const std::vector<FrontierPoint> points = Points(job, {{GpuMachine("g", 4, 80 * kGiB)}});
  ASSERT_THAT(points, SizeIs(3));
  EXPECT_THAT(points[0].reason, HasSubstr("4 ranks"));
  EXPECT_FALSE(points[1].reason.empty());
  EXPECT_TRUE(points[2].reason.empty());
  EXPECT_FALSE(points[0].on_frontier);
}

TEST(FirstDevices, TakesLargeMachinesFirstAndCutsTheLast) {
  const ClusterProfile cluster{{GpuMachine("small", 2, kGiB), CpuMachine("none", 64, 64 * kGiB),
                                GpuMachine("large", 8, kGiB)}};
  const ClusterProfile nine = FirstDevices(cluster, true, 9);
  ASSERT_THAT(nine.workers, SizeIs(2));
  EXPECT_EQ(nine.workers[0].worker_id, "large");
  EXPECT_THAT(nine.workers[0].devices, SizeIs(8));
  EXPECT_EQ(nine.workers[1].worker_id, "small");
  ASSERT_THAT(nine.workers[1].devices, SizeIs(1));
  EXPECT_THAT(nine.workers[1].devices[0].links, SizeIs(0));
  EXPECT_EQ(CountDevices(nine, true), 9);
  EXPECT_EQ(CountDevices(FirstDevices(cluster, true, 100), true), 10);
}

TEST(FirstDevices, TakesNearMachinesAndKeepsWhatIsStatedOfThem) {
  ClusterProfile cluster{
      {GpuMachine("a", 1, kGiB), GpuMachine("b", 1, kGiB), GpuMachine("c", 1, kGiB)}};
  for (WorkerProfile& worker : cluster.workers) worker.network_bytes_per_second = 1e9;
  cluster.links = {{.workers = {"a", "b"}, .bytes_per_second = 1e6}};
  const ClusterProfile two = FirstDevices(cluster, true, 2);
  ASSERT_THAT(two.workers, SizeIs(2));
  EXPECT_EQ(two.workers[0].worker_id, "a");
  EXPECT_EQ(two.workers[1].worker_id, "c");
  EXPECT_EQ(two.links, cluster.links);
  for (const ClusterProfile& kind : KindsOf(cluster)) EXPECT_EQ(kind.links, cluster.links);
}

TEST(FewestDevices, FindsTheFirstOfThoseThatFit) {
  const ClusterProfile cluster{{GpuMachine("g", 8, kGiB), GpuMachine("h", 5, kGiB)}};
  for (int64_t enough = 1; enough <= 14; ++enough) {
    const int64_t found = FewestDevices(cluster, true, [&](const ClusterProfile& part) {
      return CountDevices(part, true) >= enough;
    });
    EXPECT_EQ(found, enough <= 13 ? enough : 0);
  }
}

}  // namespace
}  // namespace weft::planner
