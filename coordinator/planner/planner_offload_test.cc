#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_model.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanJob, WhatDoesNotFitTheDeviceFitsWithTheOptimizerOnTheHost) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  job.resources.offload_optimizer = "host";
  const Plan roomy = Best(job, cluster);
  EXPECT_EQ(roomy.offload_optimizer, "host");
  EXPECT_EQ(RankCount(roomy.mesh), 1);
  const MemoryBreakdown all = roomy.prediction.memory_per_rank;
  EXPECT_GT(all.optimizer_bytes, 0) << "both tiers count on the worker";
  // Room for half of the state that moves away.
  job.resources.device_memory_bytes =
      TotalBytes(all) - all.runtime_bytes - all.optimizer_bytes - all.gradients_bytes / 2;
  const Plan fits = Best(job, cluster);
  EXPECT_EQ(fits.device_memory_bytes, job.resources.device_memory_bytes);
  job.resources.offload_optimizer = "none";
  const auto refused = PlanJob(job, cluster);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("more than resources.device_memory_bytes"));
  EXPECT_THAT(refused.status().message(), HasSubstr("resources.offload_optimizer host"));
  // A slow link is not hidden.
  job.resources.offload_optimizer = "host";
  job.resources.host_link_bytes_per_second = 10 << 20;
  EXPECT_GT(Best(job, cluster).prediction.time.exposed_communication_seconds,
            10 * fits.prediction.time.exposed_communication_seconds + 0.1);
}

TEST(PlanJob, ActivationsAndWeightsOnTheHostLeaveRoomOnTheDevice) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  const auto refused_at = [&](int64_t bytes) {
    job.resources.device_memory_bytes = bytes;
    const auto refused = PlanJob(job, cluster);
    return refused.ok() ? "" : std::string(refused.status().message());
  };
  // The least limit that a plan fits, to a hundredth.
  const auto least = [&] {
    int64_t low = 0, high = 16 * kGiB;
    while (high - low > high / 100) {
      const int64_t middle = (low + high) / 2;
      (refused_at(middle).empty() ? high : low) = middle;
    }
    return high;
  };
  const int64_t optimizer = least();
  EXPECT_THAT(refused_at(optimizer / 2), HasSubstr("resources.offload_parameters host"));
  EXPECT_THAT(refused_at(optimizer / 2), HasSubstr("resources.offload_activations host"));
  job.resources.offload_activations = "host";
  const int64_t activations = least();
  EXPECT_LT(activations, optimizer);
  job.resources.offload_parameters = "host";
  const int64_t parameters = least();
  EXPECT_LT(parameters, activations);
  job.resources.device_memory_bytes = parameters;
  const Plan plan = Best(job, cluster);
  EXPECT_EQ(plan.offload_activations, "host");
  EXPECT_EQ(plan.offload_parameters, "host");
  EXPECT_LT(plan.bucket_bytes, int64_t{25} << 20) << "gradients of a block";
  // A slow link shows: weights come up twice for each micro-batch, activations go and come.
  job.resources.host_link_bytes_per_second = 10 << 20;
  const double slow = Best(job, cluster).prediction.time.exposed_communication_seconds;
  job.resources.offload_activations = "none";
  job.resources.device_memory_bytes = 0;
  const double without = Best(job, cluster).prediction.time.exposed_communication_seconds;
  EXPECT_GT(slow, without + 1);
  EXPECT_GT(without, plan.prediction.time.exposed_communication_seconds + 1);
}

TEST(PlanJob, AnOptimalPlanSendsWhatTheLinkHidesAndRecomputesTheRest) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 8;
  job.resources.recompute = "optimal";
  const ClusterProfile cluster = Cluster(1, 4, 64 * kGiB);
  const Plan kept = Best(job, cluster);
  const MemoryBreakdown memory = kept.prediction.memory_per_rank;
  // Room for a half of the activations.
  const int64_t limit = TotalBytes(memory) - memory.runtime_bytes - memory.activations_bytes / 2;
  job.resources.device_memory_bytes = limit;
  const Plan pure = Best(job, cluster);
  EXPECT_GT(pure.prediction.time.recompute_seconds, 0);
  job.resources.offload_activations = "host";
  job.resources.recompute = "none";
  double before = 0;
  for (const int64_t link : {int64_t{1} << 20, int64_t{100} << 20, int64_t{1} << 30, kGiB * 100}) {
    SCOPED_TRACE(link);
    job.resources.host_link_bytes_per_second = link;
    job.resources.recompute = "none";
    const Plan all = Best(job, cluster);
    job.resources.recompute = "optimal";
    const Plan joint = Best(job, cluster);
    auto schedule = ParseRemat(joint.recompute_schedule, 12);
    ASSERT_TRUE(schedule.ok()) << schedule.status().ToString();
    // Memory and time are cut into steps.
    EXPECT_LE(joint.prediction.step_seconds, 1.02 * pure.prediction.step_seconds);
    EXPECT_LE(joint.prediction.step_seconds, 1.02 * all.prediction.step_seconds);
    if (before > 0) {
      EXPECT_LE(joint.prediction.step_seconds, 1.02 * before);
    }
    before = joint.prediction.step_seconds;
    EXPECT_TRUE(link > int64_t{1} << 20 || !Travels(*schedule));
    if (link == kGiB * 100) {
      EXPECT_TRUE(Travels(*schedule));
      EXPECT_EQ(joint.prediction.time.recompute_seconds, 0);
      EXPECT_EQ(joint.prediction.time.exposed_communication_seconds, 0);
    }
  }
  // Where both tiers count, what is sent makes no room.
  job.resources.device_memory_bytes = 0;
  job.resources.memory_per_rank_bytes = TotalBytes(memory) - memory.activations_bytes / 2;
  const Plan counted = Best(job, cluster);
  EXPECT_LE(TotalBytes(counted.prediction.memory_per_rank), job.resources.memory_per_rank_bytes);
}

}  // namespace
}  // namespace weft::planner
