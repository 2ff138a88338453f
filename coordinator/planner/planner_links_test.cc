// Plans on machines whose links a cluster file states.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

constexpr double kNetwork = 1e9;
constexpr double kSlow = 1e6;

ClusterProfile Processors(int machines) {
  ClusterProfile cluster = Cluster(machines, 1, 16 * kGiB);
  for (WorkerProfile& worker : cluster.workers) worker.network_bytes_per_second = kNetwork;
  return cluster;
}

ClusterProfile Gpus(int machines) {
  ClusterProfile cluster;
  for (int i = 0; i < machines; ++i) {
    cluster.workers.push_back(GpuWorker("w" + std::to_string(100 + i), 1, 40 * kGiB));
    cluster.workers.back().network_bytes_per_second = kNetwork;
  }
  return cluster;
}

LinkSpec Slow(const std::string& one, const std::string& other) {
  return {.workers = {one, other}, .bytes_per_second = kSlow};
}

/// With each pair of machines linked slowly.
ClusterProfile AllSlow(ClusterProfile cluster) {
  cluster.links.clear();
  for (const WorkerProfile& one : cluster.workers) {
    for (const WorkerProfile& other : cluster.workers) {
      if (one.worker_id < other.worker_id) {
        cluster.links.push_back(Slow(one.worker_id, other.worker_id));
      }
    }
  }
  return cluster;
}

JobSpec FourRanks() {
  JobSpec job = SmallJob();
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  return job;
}

/// Whether those two have ranks in one of the groups of `size` successive ranks.
bool ShareAGroup(const Plan& plan, size_t size, const std::string& one, const std::string& other) {
  for (size_t first = 0; first < plan.rank_workers.size(); first += size) {
    const auto begin = plan.rank_workers.begin() + static_cast<int64_t>(first);
    const auto end = begin + static_cast<int64_t>(size);
    if (std::find(begin, end, one) != end && std::find(begin, end, other) != end) return true;
  }
  return false;
}

class PlansWithLinks : public testing::TestWithParam<bool> {
 protected:
  static ClusterProfile Machines(int count) { return GetParam() ? Gpus(count) : Processors(count); }
  static double Seconds(const Plan& plan) { return plan.prediction.step_seconds; }
};

TEST_P(PlansWithLinks, TensorParallelRanksAreNotOnBothEndsOfASlowLink) {
  JobSpec job = FourRanks();
  job.resources.tensor_parallel = 2;
  ClusterProfile cluster = Machines(4);
  const Plan plain = Best(job, cluster);
  ASSERT_TRUE(ShareAGroup(plain, 2, "w100", "w101")) << "what the link changes";
  cluster.links = {Slow("w100", "w101")};
  const Plan linked = Best(job, cluster);
  ASSERT_EQ(linked.mesh.tensor, 2);
  ASSERT_EQ(linked.rank_workers.size(), 4u);
  EXPECT_FALSE(ShareAGroup(linked, 2, "w100", "w101"));
  // Nor do data-parallel ranks need it: those are 0 and 2, 1 and 3.
  EXPECT_DOUBLE_EQ(Seconds(linked), Seconds(plain));
  EXPECT_GT(Seconds(Best(job, AllSlow(cluster))), 1.5 * Seconds(plain));
}

TEST_P(PlansWithLinks, NeighboursInAPipelineAreNotOnBothEndsOfASlowLink) {
  JobSpec job = FourRanks();
  job.model.layers = 8;
  job.model.untied_classifier = true;
  job.resources.pipeline_parallel = 4;
  ClusterProfile cluster = Machines(4);
  const Plan plain = Best(job, cluster);
  ASSERT_EQ(plain.mesh.pipeline, 4);
  ASSERT_EQ(plain.rank_workers, (std::vector<std::string>{"w100", "w101", "w102", "w103"}));
  cluster.links = {Slow("w101", "w102")};
  const Plan linked = Best(job, cluster);
  ASSERT_EQ(linked.rank_workers.size(), 4u);
  for (size_t rank = 0; rank < 3; ++rank) {
    const std::string &one = linked.rank_workers[rank], &other = linked.rank_workers[rank + 1];
    EXPECT_FALSE(std::minmax(one, other) ==
                 std::minmax(cluster.workers[1].worker_id, cluster.workers[2].worker_id));
  }
  EXPECT_DOUBLE_EQ(Seconds(linked), Seconds(plain));
  EXPECT_GT(Seconds(Best(job, AllSlow(cluster))), Seconds(plain));
}

TEST_P(PlansWithLinks, OneGroupOfRanksDoesNotWaitForTheLinksOfAnother) {
  JobSpec job = FourRanks();
  job.resources.tensor_parallel = 2;
  ClusterProfile racks = Machines(4);
  racks.workers[0].rack = racks.workers[1].rack = "r0";
  racks.workers[2].rack = racks.workers[3].rack = "r1";
  const double plain = Seconds(Best(job, racks));
  racks.links = {{.racks = {"r0", "r1"}, .bytes_per_second = 1e7}};
  const double across = Seconds(Best(job, racks));
  EXPECT_GT(across, plain) << "gradients go between the racks";
  for (const char* rack : {"r0", "r1"}) {
    racks.links.push_back({.racks = {rack, rack}, .bytes_per_second = 1e7});
  }
  const double everywhere = Seconds(Best(job, racks));
  EXPECT_GT(everywhere, across) << "activations go between tensor-parallel ranks in every pass";
  // What machines say of racks is of all messages.
  racks.links.clear();
  for (WorkerProfile& worker : racks.workers) worker.between_racks_bytes_per_second = 1e7;
  EXPECT_DOUBLE_EQ(Seconds(Best(job, racks)), everywhere);
}

TEST_P(PlansWithLinks, TwoMachinesThatAreNearAreTakenBeforeTwoThatAreNot) {
  JobSpec job = FourRanks();
  job.resources.ranks = 2;
  ClusterProfile cluster = Machines(3);
  EXPECT_EQ(Best(job, cluster).rank_workers, (std::vector<std::string>{"w100", "w101"}));
  cluster.links = {Slow("w100", "w101")};
  EXPECT_EQ(Best(job, cluster).rank_workers, (std::vector<std::string>{"w100", "w102"}));
}

TEST_P(PlansWithLinks, RanksStayOnOneMachineWhereTheLinkToTheOtherIsSlow) {
  JobSpec job = Gpt2Job();
  job.train.global_batch = 512;
  job.resources.threads_per_rank = 1;
  ClusterProfile cluster = Machines(2);
  for (WorkerProfile& worker : cluster.workers) worker.network_bytes_per_second = 1e11;
  ASSERT_EQ(Best(job, cluster).rank_workers.size(), 2u);
  cluster.links = {Slow("w100", "w101")};
  EXPECT_EQ(Best(job, cluster).rank_workers.size(), 1u);
}

TEST_P(PlansWithLinks, ALinkNeverMakesMachinesFaster) {
  JobSpec job = FourRanks();
  job.resources.ranks = 2;
  ClusterProfile cluster = Machines(2);
  for (WorkerProfile& worker : cluster.workers) worker.network_latency_seconds = 1e-3;
  const double plain = Seconds(Best(job, cluster));
  cluster.links = {
      {.workers = {"w100", "w101"}, .bytes_per_second = 100 * kNetwork, .latency_seconds = 1e-6}};
  EXPECT_DOUBLE_EQ(Seconds(Best(job, cluster)), plain);
  cluster.links.front().latency_seconds = 5e-3;
  EXPECT_GT(Seconds(Best(job, cluster)), plain);
}

TEST_P(PlansWithLinks, AnyMeshIsAsGoodAsTheBestOfThoseThatAreAskedFor) {
  JobSpec job = FourRanks();
  ClusterProfile cluster = Machines(4);
  cluster.links = {Slow("w100", "w101"), Slow("w102", "w103")};
  const Result<PlanReport> any = PlanAnyMesh(job, cluster, 1);
  ASSERT_TRUE(any.ok()) << any.status().message();
  const double best = Seconds(any->candidates.front().plan);
  for (const int64_t tensor : {1, 2, 4}) {
    JobSpec one = job;
    one.resources.tensor_parallel = tensor;
    const Result<PlanReport> report = PlanJob(one, cluster);
    if (!report.ok()) continue;
    EXPECT_GE(Seconds(report->candidates.front().plan), best * (1 - 1e-9)) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, PlansWithLinks, testing::Bool(),
                         [](const auto& of) { return of.param ? "Gpus" : "Processors"; });

}  // namespace
}  // namespace weft::planner
