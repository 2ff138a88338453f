#include "common/model/memory_inputs.h"

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/model/pass_memory.h"

namespace weft {
namespace {

JobSpec Job() {
  JobSpec job;
  job.model.family = "llama";
  job.model.layers = 4;
  job.model.width = 256;
  job.model.heads = 4;
  job.model.vocab_size = 1024;
  job.model.context = 128;
  job.train.global_batch = 8;
  return job;
}

Plan PlanOf(const Mesh& mesh) {
  Plan plan;
  plan.mesh = mesh;
  plan.precision = "fp32";
  plan.micro_batch = 2;
  plan.accumulation_steps = 4;
  plan.block_memory_policy = {"recompute", "attention", "attention", "keep"};
  return plan;
}

TEST(MemoryInputsOf, HasTheShareOfARankOfTheMesh) {
  const MemoryInputs whole = MemoryInputsOf(Job(), PlanOf({}), {});
  EXPECT_EQ(whole.micro_batch, 2);
  EXPECT_EQ(whole.sequence_length, 128);
  EXPECT_EQ(whole.ranks, 1);
  EXPECT_FALSE(whole.OnCuda());
  EXPECT_EQ(ReplayedBlocks(whole.remat), 1);
  EXPECT_EQ(ReplayedAttentions(whole.remat), 2);
  // AdamW's two f32 numbers.
  EXPECT_EQ(whole.optimizer.state, 2 * 4 * whole.shape.stored_trained);

  Plan plan = PlanOf({.data = 3, .tensor = 4, .context = 2});
  plan.tensor_rows = 2;
  const MemoryInputs grid = MemoryInputsOf(Job(), plan, CudaMachine("9.0"));
  EXPECT_TRUE(grid.OnCuda());
  EXPECT_EQ(grid.product_workspace_bytes, ProductWorkspaceBytes("9.0"));
  EXPECT_EQ(grid.ranks, 6);
  EXPECT_EQ(grid.sequence_length, 64);
  EXPECT_EQ(grid.shape.tensor_rows, 2);
  EXPECT_LT(grid.shape.stored, whole.shape.stored / 2);
  EXPECT_EQ(grid.optimizer.state, 2 * 4 * grid.shape.stored_trained);
}

TEST(MemoryInputsOf, FollowsThePlanWhereTheJobLeavesItOpen) {
  JobSpec job = Job();
  job.train.precision = "auto";
  job.resources.offload_optimizer = job.resources.offload_parameters = "auto";
  Plan plan = PlanOf({.data = 2});
  plan.precision = "bf16";
  plan.offload_optimizer = "host";
  const MemoryInputs offloaded = MemoryInputsOf(job, plan, {});
  EXPECT_EQ(offloaded.precision, &kBf16Precision);
  EXPECT_TRUE(offloaded.offload_optimizer);
  EXPECT_FALSE(offloaded.offload_parameters);
  EXPECT_GT(offloaded.open_gradients.bytes, 0);

  // A job that asks for ZeRO has plans of one rank without it.
  job.resources.zero_stage = 3;
  plan.offload_optimizer = "none";
  EXPECT_EQ(MemoryInputsOf(job, plan, {}).zero_stage, 0);
  plan.zero_stage = 3;
  EXPECT_GT(MemoryInputsOf(job, plan, {}).sharded.forward_payload, 0);
}

TEST(MemoryInputsOf, EvaluationsOfRanksWithSomeOfTheUnitsAreOfTheWholeNetwork) {
  JobSpec job = Job();
  job.train.local_steps = 8;
  const Plan plan = PlanOf({.data = 4});
  const MemoryInputs whole = MemoryInputsOf(job, plan, {});
  job.train.local_sub_networks = true;
  const MemoryInputs narrow = MemoryInputsOf(job, plan, {});
  EXPECT_EQ(narrow.shape.spec.heads, 1);
  EXPECT_LT(PassSizes(narrow).before, PassSizes(whole).before / 3);
  EXPECT_EQ(EvaluationBytes(narrow), EvaluationBytes(whole));
  EXPECT_GE(WorkspacePeak(narrow, 0), EvaluationBytes(whole));

  // The first product of the whole MLP has a result in f32 besides.
  Plan bf16 = plan;
  bf16.precision = "bf16";
  const MemoryMachine widens{ProductKind::kWidenedUnpacked};
  const int64_t widened = 4 * 2 * 128 * 2 * MlpWidth(job.model);
  const MemoryInputs narrow_bf16 = MemoryInputsOf(job, bf16, widens);
  job.train.local_sub_networks = false;
  const MemoryInputs whole_bf16 = MemoryInputsOf(job, bf16, widens);
  EXPECT_EQ(EvaluationBytes(narrow_bf16), EvaluationBytes(whole_bf16) + widened);
  EXPECT_GE(WorkspacePeak(narrow_bf16, 0), EvaluationBytes(whole_bf16) + widened);
}

TEST(MemoryInputsOf, LeavesStagesOfAPipelineTheirBlocks) {
  Plan plan = PlanOf({.pipeline = 2});
  plan.recompute_segment = 2;
  const MemoryInputs inputs = MemoryInputsOf(Job(), plan, {});
  EXPECT_EQ(inputs.shape.spec.layers, 4);
  EXPECT_TRUE(inputs.remat.empty());
  EXPECT_EQ(inputs.recomputed_blocks, 1);
  EXPECT_EQ(inputs.attention_blocks, 2);
  EXPECT_EQ(inputs.recompute_segment, 2);
}

}  // namespace
}  // namespace weft
