#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_model.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanJob, EachRankHasAGpuOfItsOwnWhereThereAreSome) {
  ClusterProfile cluster{{Worker("big", 64, 512 * kGiB), GpuWorker("g", 4, 40 * kGiB)}};
  cluster.workers[1].devices[1].unusable = "XID 79";
  JobSpec job = Gpt2Job();
  job.resources.ranks = 2;
  Plan plan = Best(job, cluster);
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_EQ(plan.rank_workers, (std::vector<std::string>{"g", "g"}));
  EXPECT_EQ(plan.rank_devices, (std::vector<int64_t>{0, 2}));
  EXPECT_LE(plan.threads_per_rank, 8);
  // The machine's own memory, of 1 GiB, does not limit what is in the GPUs'.
  EXPECT_GT(TotalBytes(plan.prediction.memory_per_rank), kGiB);
  EXPECT_LE(TotalBytes(plan.prediction.memory_per_rank), 40 * kGiB);
  const std::string text = FormatPlanReport(*PlanJob(job, cluster));
  EXPECT_THAT(text, HasSubstr("on g x 2 (GPUs 0, 2)"));

  job.resources.ranks = 4;
  Result<PlanReport> report = PlanJob(job, cluster);
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("have room for 3"));

  job.resources.device = "cpu";
  plan = Best(job, cluster);
  EXPECT_EQ(plan.device, "cpu");
  EXPECT_TRUE(plan.rank_devices.empty());
}

TEST(PlanJob, ExpertsOnGpusCostTheirKernelsAndTheirWay) {
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  const auto plan = [&](int64_t experts, int64_t ranks, int64_t expert_parallel) {
    job.model.experts = experts;
    job.resources.ranks = ranks;
    job.resources.expert_parallel = expert_parallel;
    return Best(job, ClusterProfile{{GpuWorker("g", 4, 40 * kGiB)}});
  };
  const Plan dense = plan(0, 4, 1), whole = plan(8, 4, 1), shared = plan(8, 4, 4);
  const auto seconds = [](const Plan& of) { return of.prediction.time; };
  EXPECT_GT(seconds(whole).overhead_seconds, seconds(dense).overhead_seconds);
  EXPECT_LT(seconds(shared).overhead_seconds, seconds(whole).overhead_seconds) << "fewer of them";
  EXPECT_LT(seconds(shared).optimizer_seconds, seconds(whole).optimizer_seconds);
  // Rows go to experts and back; their gradients stay.
  const double alone = seconds(plan(8, 1, 1)).exposed_communication_seconds;
  EXPECT_EQ(alone, 0);
  EXPECT_GT(seconds(shared).exposed_communication_seconds, 0);
  EXPECT_LT(shared.prediction.memory_per_rank.optimizer_bytes,
            whole.prediction.memory_per_rank.optimizer_bytes / 3);
}

TEST(PlanJob, AGpuIsFasterThanTheProcessorOfItsMachine) {
  ClusterProfile cluster{{GpuWorker("g", 1, 40 * kGiB)}};
  cluster.workers[0].memory_limit_bytes = 64 * kGiB;
  JobSpec job = Gpt2Job();
  const double gpu = Best(job, cluster).prediction.step_seconds;
  job.resources.device = "cpu";
  EXPECT_LT(20 * gpu, Best(job, cluster).prediction.step_seconds);
}

TEST(PlanJob, SaysWhatSparseProductsBringOnAGpu) {
  JobSpec job = Gpt2Job();
  job.train.precision = "bf16";
  job.train.sparsity.method = "masked_decay";
  const auto measured = [](double flops_per_second) {
    ClusterProfile cluster{{GpuWorker("g", 1, 40 * kGiB)}};
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
      cluster.workers[0].devices[0].gemm.push_back(
          {"sparse24_" + std::string(pass) + "_bf16", 8192, 3072, 768, 1, flops_per_second});
    }
    return cluster;
  };
  const Result<PlanReport> fast = PlanJob(job, measured(3e15));
  ASSERT_TRUE(fast.ok()) << fast.status().message();
  EXPECT_THAT(fast->candidates[0].reason, HasSubstr("2:4 sparsity makes steps "));
  EXPECT_THAT(fast->candidates[0].reason, HasSubstr(" times as fast as dense products do"));
  EXPECT_THAT(PlanJob(job, measured(2e13)).status().message(),
              HasSubstr("hint: train.sparsity.method none"));
}

TEST(PlanJob, WithoutGpusThatWorkItSaysWhatIsWrongWithEach) {
  JobSpec job = SmallJob();
  job.resources.device = "cuda";
  Result<PlanReport> report = PlanJob(job, Cluster(1, 4, 8 * kGiB));
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("no worker offers a GPU"));
  ClusterProfile cluster{{GpuWorker("g", 1, 40 * kGiB)}};
  cluster.workers[0].devices[0].unusable = "XID 79";
  job.resources.device = "auto";
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("GPU 0 of g: XID 79"));
}

TEST(PlanJob, StagesAndGridsOfGpusArePricedAsTheirs) {
  const ClusterProfile cluster{{GpuWorker("g", 8, 40 * kGiB)}};
  JobSpec job = Gpt2Job();
  job.train.global_batch = 256;
  job.resources.micro_batch = 16;
  job.resources.recompute = "none";
  const auto plan = [&](int64_t ranks) {
    job.resources.ranks = ranks;
    return Best(job, cluster);
  };
  const Plan whole = plan(1);
  job.resources.pipeline_parallel = 4;
  const Plan staged = plan(4);
  EXPECT_EQ(staged.device, "cuda");
  EXPECT_EQ(staged.mesh.pipeline, 4);
  const MemoryBreakdown &all = whole.prediction.memory_per_rank,
                        &part = staged.prediction.memory_per_rank;
  EXPECT_LT(part.parameters_bytes, all.parameters_bytes / 2);
  EXPECT_LT(TotalBytes(part), TotalBytes(all));
  // Sixteen micro-batches in four stages; the last stage is the most costly: at least a quarter,
  // and the bubble and what no stage has less of on top.
  EXPECT_GT(staged.prediction.step_seconds, whole.prediction.step_seconds / 4);
  EXPECT_LT(staged.prediction.step_seconds, whole.prediction.step_seconds / 2);
  // What a step costs is paid once, and not in each of its passes.
  EXPECT_LT(staged.prediction.time.overhead_seconds, 2 * whole.prediction.time.overhead_seconds);

  job.resources.pipeline_parallel = 1;
  job.model.heads = 8;
  job.resources.tensor_parallel = 8;
  const Plan row = plan(8);
  job.resources.tensor_rows = 2;
  const Plan grid = plan(8);
  EXPECT_EQ(grid.device, "cuda");
  EXPECT_EQ(grid.tensor_rows, 2);
  EXPECT_LT(grid.prediction.memory_per_rank.activations_bytes,
            row.prediction.memory_per_rank.activations_bytes);
  EXPECT_GT(grid.prediction.time.exposed_communication_seconds, 0);

  job.resources.tensor_rows = job.resources.tensor_parallel = 1;
  job.resources.context_parallel = 2;
  job.resources.context_method = "ulysses";
  const Plan shared = plan(2);
  EXPECT_EQ(shared.device, "cuda");
  EXPECT_EQ(shared.mesh.context, 2);
  EXPECT_GT(shared.prediction.time.exposed_communication_seconds, 0);
}

TEST(PlanJob, RecomputesBlocksToFitIntoAGpu) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const auto plan = [&](int64_t memory) { return Best(job, {{GpuWorker("g", 1, memory)}}); };
  const auto recomputed = [](const Plan& p) {
    return std::count(p.block_memory_policy.begin(), p.block_memory_policy.end(), "recompute");
  };
  const Plan roomy = plan(40 * kGiB);
  EXPECT_EQ(recomputed(roomy), 0);
  const int64_t less = TotalBytes(roomy.prediction.memory_per_rank) / 10 * 9;
  const Plan tight = plan(less);
  EXPECT_GT(recomputed(tight), 0);
  EXPECT_LE(TotalBytes(tight.prediction.memory_per_rank), less);
  ClusterProfile cluster{{GpuWorker("g", 1, 2 * kGiB)}};
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("the largest GPU offers"));
}

}  // namespace
}  // namespace weft::planner
