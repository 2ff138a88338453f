#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

/// Compares what a plan promises with what the engine and the tests count for it.
void ExpectPromised(const JobSpec& job, const ClusterProfile& cluster) {
  const Plan plan = Best(job, cluster);
  ASSERT_FALSE(plan.rank_workers.empty());
  const WorkerProfile& worker = cluster.workers.front();
  const DType products = PrecisionOf(plan.precision).products;
  const MemoryMachine machine = plan.device == "cuda"
                                    ? CudaMachine(worker.devices.front().compute_capability)
                                    : MemoryMachine{ProcessorRates::ProductsOf(worker, products)};
  EXPECT_EQ(PredictMemory(MemoryInputsOf(job, plan, machine)), plan.prediction.memory_per_rank);
}

TEST(PlanJob, CountsSnapshotsInTheMemoryOfTheMachine) {
  JobSpec job = Gpt2Job();
  job.train.precision = "fp32";
  job.resources.ranks = 2;
  const ClusterProfile cpus = Cluster(2, 2, 64 * kGiB);
  const MemoryBreakdown without = Best(job, cpus).prediction.memory_per_rank;
  EXPECT_EQ(without.snapshots_bytes, 0);
  job.checkpoint.peer_every_steps = 10;
  const MemoryBreakdown with = Best(job, cpus).prediction.memory_per_rank;
  // AdamW's state is two numbers a weight; four copies are kept, two written, three on their way.
  EXPECT_NEAR(static_cast<double>(with.snapshots_bytes),
              9 * 1.5 * static_cast<double>(with.optimizer_bytes),
              0.01 * static_cast<double>(with.snapshots_bytes));
  EXPECT_EQ(TotalBytes(with) - with.snapshots_bytes, TotalBytes(without));
  job.resources.zero_stage = 1;
  const MemoryBreakdown sharded = Best(job, cpus).prediction.memory_per_rank;
  EXPECT_NEAR(static_cast<double>(sharded.snapshots_bytes),
              0.5 * static_cast<double>(with.snapshots_bytes),
              0.01 * static_cast<double>(with.snapshots_bytes));
  job.resources.zero_stage = 0;
  const Result<PlanReport> full =
      PlanJob(job, Cluster(2, 2, TotalBytes(with) - with.snapshots_bytes / 2));
  EXPECT_THAT(full.status().message(), HasSubstr("largest part: snapshots"));
}

TEST(PlanJob, CountsSnapshotsWithoutAFrozenNetworkThatIsInAFolder) {
  JobSpec job = Gpt2Job();
  job.train.precision = "fp32";
  job.resources.ranks = 2;
  job.checkpoint.peer_every_steps = 10;
  job.model.peft.method = "lora";
  job.model.peft.target_modules = {"all-linear"};
  const Plan plan = Best(job, Cluster(2, 2, 64 * kGiB));
  const auto predicted = [&] { return PredictMemory(MemoryInputsOf(job, plan, MemoryMachine())); };
  const MemoryBreakdown drawn = predicted();
  job.model.import_path = "/base";
  const MemoryBreakdown imported = predicted();
  // Of a weight that is trained its value and two numbers of AdamW, in four copies that are kept,
  // two that are written and three on their way.
  EXPECT_NEAR(static_cast<double>(imported.snapshots_bytes),
              9 * 1.5 * static_cast<double>(imported.optimizer_bytes),
              0.01 * static_cast<double>(imported.snapshots_bytes));
  EXPECT_NEAR(static_cast<double>(drawn.snapshots_bytes - imported.snapshots_bytes),
              9 * 4 * 124.4e6, 0.01 * static_cast<double>(drawn.snapshots_bytes));
  job.model.peft.init = "pissa";
  EXPECT_EQ(predicted().snapshots_bytes, drawn.snapshots_bytes) << "weights that have changed";
}

TEST(PlanJob, CountsSnapshotsOfGpusInHostMemory) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 2;
  job.checkpoint.peer_every_steps = 10;
  ClusterProfile cluster{{GpuWorker("g", 2, 40 * kGiB)}};
  cluster.workers[0].memory_limit_bytes = 64 * kGiB;
  const Plan plan = Best(job, cluster);
  const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
  EXPECT_GT(memory.snapshots_bytes, 10 * kGiB);
  EXPECT_EQ(BytesOfRank(plan, 0), TotalBytes(memory) - memory.snapshots_bytes);
  // All of it together would be too much for this GPU.
  cluster.workers[0].devices[0].memory_limit_bytes =
      cluster.workers[0].devices[1].memory_limit_bytes = BytesOfRank(plan, 0) + kGiB;
  EXPECT_EQ(Best(job, cluster).device, "cuda");
  cluster.workers[0].memory_limit_bytes = memory.snapshots_bytes;  // of one rank alone
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("which leaves no room"));
  cluster.workers[0].memory_limit_bytes = memory.snapshots_bytes / 2;
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("of its worker's memory"));
}

TEST(PlanJob, PromisesTheMemoryThatEveryoneCountsForThePlan) {
  for (const bool on_devices : {false, true}) {
    ClusterProfile cluster =
        on_devices ? ClusterProfile{{GpuWorker("g", 4, 40 * kGiB)}} : Cluster(1, 8, 64 * kGiB);
    cluster.workers.front().memory_limit_bytes = 64 * kGiB;
    JobSpec job = Gpt2Job();
    ResourceSpec& resources = job.resources;
    resources.ranks = 4;
    const auto expect = [&](const char* what) {
      SCOPED_TRACE(std::string(what) + (on_devices ? " on GPUs" : " on a processor"));
      ExpectPromised(job, cluster);
    };
    expect("data parallel");
    resources.recompute = "attention";
    expect("attention recomputed");
    resources.activation_bits = 8;
    expect("compressed activations");
    for (resources.zero_stage = 1; resources.zero_stage < 4; ++resources.zero_stage) {
      expect("ZeRO");
    }
    resources = {};
    resources.ranks = resources.tensor_parallel = 4;
    resources.tensor_rows = 2;
    expect("2-D tensor parallel");
    resources = {};
    resources.ranks = 4;
    resources.context_parallel = 2;
    expect("context parallel");
    resources = {};
    resources.ranks = 1;
    resources.offload_optimizer = "host";
    expect("offloaded optimizer");
    resources.offload_parameters = resources.offload_activations = "host";
    resources.resident_units = {0, 2};
    expect("all offloaded");
    resources.offload_parameters = resources.offload_activations = "none";
    resources.resident_units = {};
    resources.device_updated_units = {0, 1};
    expect("part of the optimizer offloaded");
    resources = {};
    resources.ranks = 4;
    resources.expert_parallel = 2;
    job.model.family = "llama";
    job.model.experts = 4;
    expect("expert parallel");
  }
}

}  // namespace
}  // namespace weft::planner
