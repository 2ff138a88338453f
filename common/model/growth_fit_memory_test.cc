// The memory of what learns a growth operator.
#include "common/model/growth_fit_memory.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/spec/phases.h"

namespace weft {
namespace {

constexpr int64_t kWidth = 256, kLayers = 4;

/// A phase that learns to grow from half the width.
JobSpec Learned() {
  JobSpec job;
  job.model.layers = kLayers;
  job.model.width = kWidth;
  job.model.heads = 4;
  job.model.vocab_size = 1024;
  job.model.context = 128;
  job.train.precision = "fp32";
  job.train.global_batch = 8;
  PhaseGrowth growth{job.model, {}};
  growth.before.width = kWidth / 2;
  growth.before.heads = 2;
  growth.growth.method = "ligo";
  SetPhaseGrowth(growth, job);
  return job;
}

Plan PlanOf(const Mesh& mesh) {
  Plan plan;
  plan.mesh = mesh;
  plan.precision = "fp32";
  plan.micro_batch = 2;
  return plan;
}

int64_t Numbers(const JobSpec& job) {
  return ShapeOf(job).counts.Total();
}

TEST(GrowthFitMemory, IsOfWholeReplicasWithoutAnOptimizer) {
  JobSpec job = Learned();
  job.train.local_steps = 4;
  job.train.replay_every_steps = 10;
  job.resources.zero_stage = 3;
  job.resources.tensor_parallel = 2;
  job.resources.offload_optimizer = "host";
  const JobSpec fit = JobOfGrowthFit(job);
  EXPECT_TRUE(fit.phases.empty());
  EXPECT_EQ(fit.train.local_steps, 1);
  EXPECT_EQ(fit.train.replay_every_steps, 0);
  EXPECT_EQ(fit.resources.zero_stage, 0);
  EXPECT_EQ(fit.resources.tensor_parallel, 1);
  EXPECT_EQ(fit.resources.offload_optimizer, "none");
  EXPECT_EQ(fit.train.global_batch, job.train.global_batch);

  Plan plan = PlanOf({.data = 2, .tensor = 2, .pipeline = 2, .expert = 2});
  plan.stage_blocks = {2, 2};
  plan.zero_stage = 3;
  const Plan whole = PlanOfGrowthFit(job, plan);
  EXPECT_EQ(whole.mesh.data, 4) << "expert-parallel ranks have other sequences";
  EXPECT_EQ(RankCount(whole.mesh), 4);
  EXPECT_EQ(whole.zero_stage, 0);
  EXPECT_EQ(whole.micro_batch, 2);
  EXPECT_EQ(whole.block_memory_policy, std::vector<std::string>(kLayers, "recompute"));
  Plan alone = PlanOf({.data = 2});
  alone.block_memory_policy = {"attention", "keep", "keep", "keep"};
  EXPECT_EQ(PlanOfGrowthFit(job, alone).block_memory_policy, alone.block_memory_policy);
}

TEST(GrowthFitMemory, CountsWeightsGradientsAndTheOperator) {
  const JobSpec job = Learned();
  const auto memory = GrowthFitMemory::Of(job, CudaMachine("9.0"));
  ASSERT_TRUE(memory);
  const MemoryInputs inputs = MemoryInputsOf(job, PlanOf({.data = 2}), CudaMachine("9.0"));
  const MemoryBreakdown steps = PredictMemory(inputs), fit = memory->Of(inputs);
  EXPECT_EQ(fit.parameters_bytes, steps.parameters_bytes);
  EXPECT_EQ(fit.gradients_bytes, steps.gradients_bytes);
  EXPECT_EQ(fit.activations_bytes, steps.activations_bytes);
  EXPECT_EQ(fit.optimizer_bytes, 0) << "the operator is on the host";
  EXPECT_EQ(memory->host_bytes(), 0);

  JobSpec before = job;
  before.model = LearnedGrowthOf(job)->before;
  const MemoryInputs on_host = MemoryInputsOf(job, PlanOf({.data = 2}), {});
  const MemoryBreakdown host_steps = PredictMemory(on_host);
  const MemoryBreakdown on_cpu = GrowthFitMemory::Of(job, {})->Of(on_host);
  EXPECT_EQ(on_cpu.parameters_bytes, host_steps.parameters_bytes + 4 * Numbers(before));
  // The stream three times; queries, keys, values and what reads these; the MLP's twice.
  constexpr int64_t kSide = kWidth * kWidth / 2;
  EXPECT_EQ(on_cpu.optimizer_bytes, 16 * (3 + 4 + 2 * 16) * kSide);
  EXPECT_EQ(GrowthFitMemory::Of(job, {})->host_bytes(),
            on_cpu.optimizer_bytes + 4 * Numbers(before));
}

TEST(GrowthFitMemory, IsWholeWhateverRanksShare) {
  JobSpec job = Learned();
  const MemoryInputs alone = MemoryInputsOf(job, PlanOf({.data = 2}), {});
  const MemoryBreakdown kept = GrowthFitMemory::Of(job, {})->Of(alone);
  const auto fit_of = [&](const Plan& plan) {
    return GrowthFitMemory::Of(job, {})->Of(MemoryInputsOf(job, plan, {}));
  };
  job.resources.tensor_parallel = 2;
  const MemoryBreakdown tensor = fit_of(PlanOf({.data = 2, .tensor = 2}));
  EXPECT_EQ(tensor.parameters_bytes, kept.parameters_bytes);
  EXPECT_EQ(tensor.gradients_bytes, kept.gradients_bytes);
  EXPECT_LT(tensor.activations_bytes, kept.activations_bytes) << "of blocks their inputs alone";
  job.resources.tensor_parallel = 1;
  job.resources.zero_stage = 3;
  Plan zero = PlanOf({.data = 2});
  zero.zero_stage = 3;
  EXPECT_EQ(fit_of(zero), tensor);
  job.resources.zero_stage = 0;
  job.resources.context_parallel = 2;
  EXPECT_EQ(fit_of(PlanOf({.data = 2, .context = 2})).activations_bytes, tensor.activations_bytes)
      << "of whole sequences";
}

TEST(GrowthFitMemory, OtherPhasesHaveNone) {
  JobSpec job = Learned();
  job.phases.clear();
  EXPECT_FALSE(GrowthFitMemory::Of(job, {}));
}

}  // namespace
}  // namespace weft
