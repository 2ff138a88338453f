#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/model/remat_schedule.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanRecomputation, RecomputesAsFewBlocksAsMemoryAllows) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const Plan all_kept = Best(job, ample);
  EXPECT_EQ(all_kept.block_memory_policy, std::vector<std::string>(12, "keep"));

  job.resources.recompute = "block";
  const Plan all_blocks = Best(job, ample);
  EXPECT_EQ(all_blocks.block_memory_policy, std::vector<std::string>(12, "recompute"));

  job.resources.recompute = "auto";
  job.resources.memory_per_rank_bytes =
      TotalBytes(all_kept.prediction.memory_per_rank) - 300 * (1 << 20);
  const Plan some = Best(job, ample);
  const auto blocks = [&](const char* policy) {
    return std::count(some.block_memory_policy.begin(), some.block_memory_policy.end(), policy);
  };
  // A block keeps 73 MiB of 16 x 256 tokens: 24 inside of attention, 67 without its input.
  const int64_t freed = 67 * blocks("recompute") + 24 * blocks("attention");
  EXPECT_GE(freed, 290);
  EXPECT_LE(freed, 400);
  EXPECT_EQ(some.block_memory_policy.front(), "recompute");
  // Attention of many blocks takes less time than all of a few.
  EXPECT_GT(blocks("attention"), 0);
  EXPECT_GT(some.prediction.time.recompute_seconds, 0);
  EXPECT_LT(some.prediction.time.recompute_seconds,
            5.0 / 12 * all_blocks.prediction.time.recompute_seconds);

  job.resources.recompute = "none";
  EXPECT_EQ(PlanJob(job, ample).status().code(), StatusCode::kExhausted);
}

TEST(PlanRecomputation, ObeysEachWayOfRecomputing) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  job.resources.recompute = "attention";
  const Plan attention = Best(job, ample);
  EXPECT_EQ(attention.block_memory_policy, std::vector<std::string>(12, "attention"));
  job.resources.recompute = "block";
  job.resources.memory_per_rank_bytes = 0;
  const Plan block = Best(job, ample);
  job.resources.recompute_segment = 3;
  const Plan segments = Best(job, ample);
  EXPECT_EQ(segments.recompute_segment, 3);
  EXPECT_EQ(segments.block_memory_policy, block.block_memory_policy);
  const auto activations = [](const Plan& plan) {
    return plan.prediction.memory_per_rank.activations_bytes;
  };
  EXPECT_GT(attention.prediction.time.recompute_seconds, 0);
  EXPECT_LT(attention.prediction.time.recompute_seconds,
            block.prediction.time.recompute_seconds / 2);
  EXPECT_GT(activations(attention), activations(block));
}

TEST(PlanRecomputation, AnOptimalScheduleFitsAndIsNoSlowerThanTheChoiceOfAuto) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const Plan kept = Best(job, ample);
  const int64_t all = TotalBytes(kept.prediction.memory_per_rank);
  job.resources.recompute = "block";
  const int64_t least = TotalBytes(Best(job, ample).prediction.memory_per_rank);
  for (const int64_t limit : {all, all - (all - least) / 4, all - (all - least) / 2, least}) {
    SCOPED_TRACE(limit);
    job.resources.memory_per_rank_bytes = limit;
    job.resources.recompute = "auto";
    const Plan chosen = Best(job, ample);
    job.resources.recompute = "optimal";
    const Plan optimal = Best(job, ample);
    EXPECT_LE(TotalBytes(optimal.prediction.memory_per_rank), limit);
    // Memory is cut into slots, so that a block more may have to be recomputed.
    EXPECT_LE(
        optimal.prediction.time.recompute_seconds,
        1.1 * chosen.prediction.time.recompute_seconds + chosen.prediction.step_seconds * 0.02);
    auto schedule = ParseRemat(optimal.recompute_schedule, 12);
    ASSERT_TRUE(schedule.ok()) << schedule.status().ToString();
    EXPECT_EQ(PoliciesOf(*schedule), optimal.block_memory_policy);
  }
  // Where one replay of every block is not enough.
  job.resources.memory_per_rank_bytes = least - (80 << 20);
  job.resources.recompute = "auto";
  EXPECT_THAT(PlanJob(job, ample).status().message(), HasSubstr("resources.recompute optimal"));
  job.resources.recompute = "optimal";
  const Plan twice = Best(job, ample);
  EXPECT_LE(TotalBytes(twice.prediction.memory_per_rank), job.resources.memory_per_rank_bytes);
  EXPECT_GT(ReplayedBlocks(*ParseRemat(twice.recompute_schedule, 12)), 12);
}

TEST(PlanRecomputation, CompressedActivationsTakeLessMemoryAndMoreTime) {
  const auto plan = [](int64_t bits) {
    JobSpec job = Gpt2Job();
    job.resources.ranks = 1;
    job.resources.threads_per_rank = 4;
    job.resources.micro_batch = 1;
    job.resources.recompute = "none";
    job.resources.activation_bits = bits;
    return Best(job, Cluster(1, 4, 64 * kGiB)).prediction;
  };
  Prediction before = plan(0);
  const double exact = before.time.memory_bound_seconds;
  for (int64_t bits : {8, 4, 2}) {
    const Prediction fewer = plan(bits);
    EXPECT_LT(fewer.memory_per_rank.activations_bytes, before.memory_per_rank.activations_bytes);
    EXPECT_GT(fewer.time.memory_bound_seconds, exact);
    EXPECT_EQ(fewer.time.gemm_seconds, before.time.gemm_seconds);
    if (bits < 8) {
      EXPECT_LT(fewer.time.memory_bound_seconds, before.time.memory_bound_seconds);
    }
    before = fewer;
  }
}

TEST(PlanRecomputation, WhatIsRecomputedHasFewerCodesAndTheirTime) {
  const auto plan = [](const char* recompute, int64_t bits) {
    JobSpec job = Gpt2Job();
    job.resources.ranks = 1;
    job.resources.threads_per_rank = 4;
    job.resources.micro_batch = 4;
    job.resources.recompute = recompute;
    job.resources.activation_bits = bits;
    return Best(job, Cluster(1, 4, 64 * kGiB)).prediction;
  };
  double seconds_before = 0;
  for (const char* recompute : {"block", "attention", "none"}) {
    SCOPED_TRACE(recompute);
    const Prediction plain = plan(recompute, 0), compressed = plan(recompute, 8);
    EXPECT_LT(compressed.memory_per_rank.activations_bytes,
              plain.memory_per_rank.activations_bytes);
    EXPECT_EQ(compressed.time.recompute_seconds, plain.time.recompute_seconds);
    const double more = compressed.time.memory_bound_seconds - plain.time.memory_bound_seconds;
    EXPECT_GT(more, seconds_before);
    seconds_before = more;
  }
  // The ranks of a pipeline keep several micro-batches so.
  JobSpec stages = Gpt2Job();
  stages.resources.ranks = stages.resources.pipeline_parallel = 2;
  stages.resources.threads_per_rank = 2;
  stages.resources.micro_batch = 1;
  for (const char* recompute : {"block", "none"}) {
    stages.resources.recompute = recompute;
    stages.resources.activation_bits = 0;
    const Prediction plain = Best(stages, Cluster(1, 4, 64 * kGiB)).prediction;
    stages.resources.activation_bits = 8;
    const Prediction compressed = Best(stages, Cluster(1, 4, 64 * kGiB)).prediction;
    EXPECT_LT(compressed.memory_per_rank.activations_bytes,
              plain.memory_per_rank.activations_bytes);
    EXPECT_GT(compressed.time.memory_bound_seconds, plain.time.memory_bound_seconds);
  }
  // Where there is no room otherwise, some blocks are recomputed.
  JobSpec tight = Gpt2Job();
  tight.resources.ranks = 1;
  tight.resources.threads_per_rank = 4;
  tight.resources.micro_batch = 4;
  tight.resources.activation_bits = 8;
  const Plan roomy = Best(tight, Cluster(1, 4, 64 * kGiB));
  EXPECT_TRUE(std::all_of(roomy.block_memory_policy.begin(), roomy.block_memory_policy.end(),
                          [](const std::string& policy) { return policy == "keep"; }));
  tight.resources.memory_per_rank_bytes = TotalBytes(roomy.prediction.memory_per_rank) -
                                          roomy.prediction.memory_per_rank.activations_bytes / 4;
  for (const char* recompute : {"auto", "optimal"}) {
    tight.resources.recompute = recompute;
    const Plan fitted = Best(tight, Cluster(1, 4, 64 * kGiB));
    EXPECT_LE(TotalBytes(fitted.prediction.memory_per_rank), tight.resources.memory_per_rank_bytes);
    EXPECT_GT(fitted.prediction.time.recompute_seconds, 0) << recompute;
  }
}

}  // namespace
}  // namespace weft::planner
