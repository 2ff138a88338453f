#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

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
