// What ranks may not do with their devices, most with state in host tiers, and what the planner
// promises of both tiers, which only the host execution can show.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/memory_text.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/techniques/offload/mesh_testing.h"

namespace weft::engine {
namespace {

// All tests of this program: work is done when it is waited for, and no sooner.
class Devices : public ::testing::Environment {
  void SetUp() override {
    host_cuda::SetDeviceCount(4);
    host_cuda::DeferWork(true);
  }
  void TearDown() override { EXPECT_EQ(OpenFakeComms(), 0); }
};
const auto* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

/// How often the hosts of two ranks wait for their devices, together, in each of the steps that
/// follow the first ones.
int64_t WaitsOfAStep(Plan plan, const SparsitySpec& sparsity = {}) {
  constexpr int kRanks = 2;
  plan.mesh.data = kRanks;
  plan.bucket_bytes = 16384;
  JobSpec job = TinyJob(kRanks * plan.micro_batch * plan.accumulation_steps);
  job.model.layers = 4;
  job.train.sparsity = sparsity;
  RandomTokens data(job.model.vocab_size, job.model.context);
  int64_t waits = 0;
  const auto train = [&](Collective& group) {
    DeviceRun run(job, plan, data, group.device(), {.group = &group, .graphs = false});
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(group.Barrier().ok());
      const int64_t before = host_cuda::Waits();
      ASSERT_TRUE(group.Barrier().ok());
      run.Step();
      ASSERT_TRUE(group.Barrier().ok());
      const int64_t own = host_cuda::Waits() - before;
      ASSERT_TRUE(group.Barrier().ok());
      if (group.rank() > 0 || step < 3) continue;
      EXPECT_EQ(own, step == 3 ? own : waits) << step;
      waits = own;
    }
  };
  RunRanks(kRanks, std::chrono::seconds(60), train, DeviceType::kCuda);
  return waits;
}

// For the passes, for the gradients that are still on their way, and for the loss, as one rank
// does; where updates are shared also for the values that the others have updated.
TEST(OffloadOfRanksOnHostExecution, TheHostsWaitInNoPass) {
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    for (const int64_t micro_batches : {1, 3}) {
      SCOPED_TRACE(zero_stage);
      Plan plan = TinyPlan("fp32", 1, micro_batches);
      plan.zero_stage = zero_stage;
      plan.offload_optimizer = "host";
      if (zero_stage > 2) plan.offload_parameters = "host";
      const bool gathers = zero_stage == 1 || zero_stage == 2;
      EXPECT_EQ(WaitsOfAStep(plan), 2 * (gathers ? 4 : 3)) << micro_batches;
      plan.offload_activations = plan.offload_parameters = "host";
      EXPECT_EQ(WaitsOfAStep(plan), 2 * (gathers ? 4 : 3)) << micro_batches;
    }
  }
}

// Blocks take turns with one set of packed weights, so that masks are set in every pass.
TEST(RanksOnHostExecution, TheHostsWaitForNoMaskOfGatheredWeights) {
  Plan plan = TinyPlan("bf16", 1, 2);
  plan.zero_stage = 3;
  const SparsitySpec sparse = {.method = "masked_decay", .mask_interval = 100};
  EXPECT_EQ(WaitsOfAStep(plan, sparse), WaitsOfAStep(plan));
}

/// Nothing that is enqueued runs as long as this lives.
struct SkippedWork {
  SkippedWork() { host_cuda::SkipWork(true); }
  ~SkippedWork() { host_cuda::SkipWork(false); }
};

MeshCase LargerCase(const std::string& precision, int64_t data, int64_t zero_stage) {
  MeshCase c{TinyJob(2 * data), TinyPlan(precision, 1, 2)};
  ModelSpec& model = c.job.model;
  model.layers = 4;
  model.width = 256;
  model.heads = 4;
  model.vocab_size = 2000;
  model.context = 512;
  c.job.train.steps = 2;
  c.job.train.precision = precision;
  c.job.train.eval_sequences = 1;
  c.job.train.log_every_steps = 10;
  c.plan.mesh.data = data;
  c.plan.zero_stage = zero_stage;
  c.plan.bucket_bytes = int64_t{1} << 20;
  return c;
}

void ExpectNear(const char* tier, const MemoryBreakdown& predicted,
                const MemoryBreakdown& measured) {
  const auto promised = Components(predicted), taken = Components(measured);
  for (size_t i = 0; i < promised.size(); ++i) {
    // NCCL's own.
    if (promised[i].name == "communication" || promised[i].name == "runtime") continue;
    const auto most = 0.01 * static_cast<double>(promised[i].bytes);
    EXPECT_NEAR(static_cast<double>(taken[i].bytes), static_cast<double>(promised[i].bytes), most)
        << promised[i].name << " of the " << tier;
  }
}

MemoryBreakdown Less(MemoryBreakdown all, const MemoryBreakdown& part) {
  all.parameters_bytes -= part.parameters_bytes;
  all.gradients_bytes -= part.gradients_bytes;
  all.optimizer_bytes -= part.optimizer_bytes;
  all.activations_bytes -= part.activations_bytes;
  all.workspace_bytes -= part.workspace_bytes;
  return all;
}

TEST(OffloadOfRanksOnHostExecution, TakesOfEachTierWhatIsPredicted) {
  const SkippedWork skipped;
  for (const int data : {2, 4}) {
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      for (const char* precision : {"fp32", "bf16"}) {
        for (const bool all : {false, true}) {
          // Four ranks with half of the choices, each with both of every other one.
          const bool bf16 = PrecisionOf(precision).products == DType::kBF16;
          if (data > 2 && (zero_stage + (bf16 ? 1 : 0) + (all ? 1 : 0)) % 2 == 1) continue;
          SCOPED_TRACE(std::string(precision) + ", stage " + std::to_string(zero_stage) + ", " +
                       std::to_string(data) + (all ? " ranks, all" : " ranks"));
          MeshCase c = LargerCase(precision, data, zero_stage);
          c.plan.offload_optimizer = c.job.resources.offload_optimizer = "host";
          if (all || zero_stage > 2) c.plan.offload_parameters = "host";
          if (all) c.plan.offload_activations = "host";
          MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, CudaMachine("9.0"));
          // The products of the host execution want hardly any.
          inputs.product_workspace_bytes = 0;
          const MemoryBreakdown device = PredictDeviceTier(inputs);
          const Offloaded rank = TrainOffloaded(c, DeviceType::kCuda).front();
          ExpectNear("device", device, rank.device);
          ExpectNear("host", Less(PredictMemory(inputs), device), rank.host);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
