// The devices of model-parallel ranks, and what the planner predicts of their memory: measured
// without the work itself, which is skipped.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/memory_text.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

// All tests of this program.
class Devices : public ::testing::Environment {
  void SetUp() override {
    host_cuda::SetDeviceCount(4);
    host_cuda::DeferWork(true);
  }
  void TearDown() override { EXPECT_EQ(OpenFakeComms(), 0); }
};
const auto* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

/// Nothing that is enqueued runs as long as this lives.
struct SkippedWork {
  SkippedWork() { host_cuda::SkipWork(true); }
  ~SkippedWork() { host_cuda::SkipWork(false); }
};

MeshCase Case(int64_t layers, const std::string& precision, const std::string& policy) {
  MeshCase c{TinyJob(8), TinyPlan(precision, 1, 8)};
  c.job.model.layers = layers;
  c.job.model.width = 256;
  c.job.model.heads = 4;
  c.job.model.vocab_size = 2000;
  c.job.model.context = 512;
  c.job.train.steps = 2;
  c.job.train.precision = precision;
  c.job.train.eval_sequences = 1;
  c.job.train.log_every_steps = 10;
  c.plan.block_memory_policy.assign(static_cast<size_t>(layers), policy);
  return c;
}

MemoryInputs InputsOf(const MeshCase& c) {
  MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, CudaMachine("9.0"));
  // The products of the host execution want hardly any.
  inputs.product_workspace_bytes = 0;
  return inputs;
}

MemoryBreakdown Fullest(const MeshCase& c) {
  MemoryBreakdown fullest;
  for (const MeshOutcome& rank : TrainOnMesh(c, DeviceType::kCuda)) {
    const MemoryBreakdown& peaks = rank.reports.back().peak_memory;
    if (TotalBytes(peaks) > TotalBytes(fullest)) fullest = peaks;
  }
  return fullest;
}

void ExpectNear(const MemoryBreakdown& predicted, const MemoryBreakdown& measured,
                double tolerance) {
  const auto promised = Components(predicted), taken = Components(measured);
  for (size_t i = 0; i < promised.size(); ++i) {
    if (promised[i].bytes + taken[i].bytes == 0) continue;
    if (promised[i].name == "communication" || promised[i].name == "runtime") continue;
    EXPECT_NEAR(static_cast<double>(promised[i].bytes) / static_cast<double>(taken[i].bytes), 1,
                tolerance)
        << promised[i].name << ": predicted " << promised[i].bytes << ", measured "
        << taken[i].bytes;
  }
}

/// Predicted over measured bytes of all that the arena holds and kernels ask for.
double Ratio(MemoryBreakdown predicted, MemoryBreakdown measured) {
  predicted.runtime_bytes = predicted.communication_bytes = measured.communication_bytes = 0;
  return static_cast<double>(TotalBytes(predicted)) / static_cast<double>(TotalBytes(measured));
}

// The host runs ahead, and keeps what it has sent for longer than on a CPU.
TEST(MemoryOfMeshesOnCuda, OfStagesIsWhatIsPredicted) {
  const SkippedWork skipped;
  for (const auto& [schedule, chunks] : {std::pair<std::string, int64_t>{"gpipe", 1},
                                         {"1f1b", 1},
                                         {"zero_bubble", 1},
                                         {"interleaved", 2}}) {
    SCOPED_TRACE(schedule);
    MeshCase c = Case(4, "bf16", "keep");
    c.plan.mesh.pipeline = 2;
    c.plan.pipeline_schedule = schedule;
    c.plan.pipeline_chunks = chunks;
    c.plan.stage_blocks =
        chunks > 1 ? std::vector<int64_t>{1, 1, 1, 1} : std::vector<int64_t>{2, 2};
    const auto steps = NamedSchedule(schedule, 2, chunks, 8);
    ASSERT_TRUE(steps.ok());
    const double ratio =
        Ratio(PredictPipelineMemory(InputsOf(c), c.plan.stage_blocks, *steps), Fullest(c));
    EXPECT_GT(ratio, 0.98);
    EXPECT_LT(ratio, 1.03);
  }
}

TEST(MemoryOfMeshesOnCuda, OfSharedSequencesIsWhatIsPredicted) {
  const SkippedWork skipped;
  for (const std::string method : {"ring", "ulysses"}) {
    for (const std::string policy : {"keep", "recompute"}) {
      SCOPED_TRACE(method + ", " + policy);
      MeshCase c = Case(2, "bf16", policy);
      c.plan.mesh.context = 2;
      c.plan.context_method = c.job.resources.context_method = method;
      ExpectNear(PredictMemory(InputsOf(c)), Fullest(c), 0.02);
    }
  }
}

TEST(MemoryOfMeshesOnCuda, OfSharedSequencesAndMoreIsWhatIsPredicted) {
  const SkippedWork skipped;
  MeshCase c = Case(2, "bf16", "keep");
  c.plan.mesh.context = 2;
  MeshCase sharded = c;
  sharded.plan.zero_stage = 3;
  ExpectNear(PredictMemory(InputsOf(sharded)), Fullest(sharded), 0.02);
  MeshCase heads = c;
  heads.plan.mesh.tensor = 2;
  ExpectNear(PredictMemory(InputsOf(heads)), Fullest(heads), 0.02);
}

TEST(MemoryOfMeshesOnCuda, OfGridsIsWhatIsPredicted) {
  const SkippedWork skipped;
  MeshCase c = Case(2, "bf16", "keep");
  c.plan.mesh.tensor = 4;
  c.plan.tensor_rows = 2;
  c.plan.micro_batch = 4;
  c.plan.accumulation_steps = 2;
  ExpectNear(PredictMemory(InputsOf(c)), Fullest(c), 0.02);
}

// How many rows each expert has is known only once the work is done, so these are small.
TEST(MemoryOfMeshesOnCuda, OfExpertsInPartsIsWhatIsPredicted) {
  MeshCase c = Case(1, "bf16", "keep");
  ModelSpec& model = c.job.model;
  model.family = "llama";
  model.width = 128;
  model.kv_heads = 2;
  model.mlp_width = 256;
  model.vocab_size = 1024;
  model.context = 128;
  model.experts = 4;
  c.plan.mesh.tensor = 2;
  c.plan.accumulation_steps = c.job.train.global_batch = 2;
  EXPECT_NEAR(Ratio(PredictMemory(InputsOf(c)), Fullest(c)), 1, 0.01);
}

}  // namespace
}  // namespace weft::engine
