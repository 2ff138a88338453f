// The memory of a rank of a cluster against common/model, against the published arithmetic of
// activations, and against what runs on GPUs held (tests/planner/memory_test.py has all of them).
#include "coordinator/planner/cluster/run_memory.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/model/memory_model.h"

namespace weft::planner {
namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

SoftwareStack Stack(const char* name) {
  return *FindStack(name);
}

ModelSpec Spec(int64_t experts) {
  ModelSpec model;
  model.family = "llama";
  model.layers = 6;
  model.width = 1024;
  model.heads = 16;
  model.kv_heads = 4;
  model.mlp_width = 2048;
  model.vocab_size = 32000;
  model.experts = experts;
  return model;
}

DecoderShape Decoder(const ModelSpec& model) {
  return {.layers = model.layers,
          .width = model.width,
          .heads = model.heads,
          .key_heads = model.kv_heads,
          .mlp_width = model.mlp_width,
          .gated = true,
          .vocabulary = model.vocab_size,
          .sequence_length = 512,
          .experts = std::max<int64_t>(model.experts, 1),
          .experts_per_token = model.experts > 0 ? model.experts_per_token : 1};
}

ClusterRun Gpt(int64_t layers, int64_t width, int64_t heads, int64_t vocabulary) {
  ClusterRun run;
  run.model = {.layers = layers,
               .width = width,
               .heads = heads,
               .key_heads = heads,
               .mlp_width = 4 * width,
               .vocabulary = vocabulary,
               .sequence_length = 2048};
  run.precision = "fp16";
  return run;
}

TEST(RunMemory, OfABlockAndOfParametersIsThatOfTheModel) {
  const SoftwareStack stack = Stack("weft");
  for (const int64_t experts : {0, 8}) {
    const ModelSpec spec = Spec(experts);
    const ModelShape shape(spec);
    ClusterRun run;
    run.model = Decoder(spec);
    run.micro_batch = 3;
    EXPECT_EQ(SavedByBlock(stack, run), static_cast<double>(BlockSavedBytes(shape, 3 * 512, 2)));
    const RunMemory memory = MemoryOf(stack, run);
    const ParameterCounts& counts = shape.counts;
    const auto numbers =
        static_cast<double>(counts.attention + counts.mlp + counts.token_embedding);
    EXPECT_EQ(memory.parameters, 2 * numbers);
    EXPECT_EQ(memory.gradients, 4 * numbers);
    EXPECT_EQ(memory.optimizer, 12 * numbers);
    // A classifier of its own is as large as the table, and is on the last stage.
    run.model.untied_classifier = true;
    EXPECT_EQ(MemoryOf(stack, run).parameters,
              2 * (numbers + static_cast<double>(counts.token_embedding)));
    run.pipeline = 2;
    run.global_batch = 6;
    EXPECT_EQ(MemoryAt(stack, run, 0).parameters, MemoryAt(stack, run, 1).parameters);
  }
}

TEST(RunMemory, IsShardedAmongRanksThatHaveTheSame) {
  const SoftwareStack stack = Stack("weft");
  ClusterRun run;
  run.model = Decoder(Spec(8));
  run.data = 16;
  run.global_batch = 16;
  const BlockParameters block = ParametersOfBlock(run.model);
  const double dense = 6 * block.dense + 32000.0 * 1024, experts = 6 * block.experts;
  run.expert = 8;
  EXPECT_DOUBLE_EQ(MemoryOf(stack, run).optimizer, 12 * (dense + experts / 8));
  // Two ranks have the same experts.
  run.zero_stage = 1;
  EXPECT_DOUBLE_EQ(MemoryOf(stack, run).optimizer, 12 * (dense / 16 + experts / 16));
  EXPECT_DOUBLE_EQ(MemoryOf(stack, run).gradients, 4 * (dense + experts / 8));
  run.zero_stage = 3;
  EXPECT_DOUBLE_EQ(MemoryOf(stack, run).parameters, 2 * (dense / 16 + experts / 16));
}

// Korthikanti et al. 2022, table 2, of the 22-billion model with 8 tensor-parallel ranks and four
// sequences: MiB of a block.
TEST(RunMemory, OfABlockIsThatOfThePublishedArithmetic) {
  const SoftwareStack stack = Stack("megatron-2021");
  ClusterRun run = Gpt(48, 6144, 64, 51200);
  run.micro_batch = run.global_batch = 4;
  EXPECT_NEAR(SavedByBlock(stack, run) / kMiB, 6752, 6);
  run.tensor = 8;
  EXPECT_NEAR(SavedByBlock(stack, run) / kMiB, 1264, 1);
  run.recomputation = Recomputation::kAttention;
  EXPECT_NEAR(SavedByBlock(stack, run) / kMiB, 624, 1);
  // With all recomputed a block keeps what it reads, 96 MiB, and one is there whole.
  run.recomputation = Recomputation::kBlock;
  const RunMemory memory = MemoryOf(stack, run);
  EXPECT_NEAR(memory.activations / kMiB, 49 * 96, 1);
  EXPECT_GE(memory.workspace / kMiB, 1264);
}

TEST(RunMemory, KnowsWhereInThePipelineARankIs) {
  const SoftwareStack stack = Stack("megatron-2024");
  ClusterRun run = Gpt(96, 12288, 96, 51200);
  run.tensor = 8;
  run.pipeline = 8;
  run.global_batch = 64;
  const double saved = SavedByBlock(stack, run);
  const double row = 2.0 * 2048 * 12288 / 8;
  const auto activations = [&](int64_t position) {
    return MemoryAt(stack, run, position).activations;
  };
  EXPECT_DOUBLE_EQ(activations(0), 8 * (12 * saved + row));
  EXPECT_DOUBLE_EQ(activations(7), 12 * saved + row);
  // Three stages a rank: those of 124 blocks on the first one (Korthikanti et al., section 4.2.3).
  run.stages_per_rank = 3;
  EXPECT_NEAR(activations(0), 124 * saved + 124.0 / 12 * row, 1);
  EXPECT_NEAR(activations(7), 68 * saved + 68.0 / 12 * row, 1);
  // Never more than there are.
  run.global_batch = 2;
  EXPECT_DOUBLE_EQ(activations(0), 2 * (12 * saved + row));
}

TEST(RunMemory, CountsWholeBlocks) {
  const SoftwareStack stack = Stack("megatron-deepspeed-2022");
  SoftwareStack balanced = stack;
  balanced.tables_are_blocks = true;
  ClusterRun run = Gpt(78, 13824, 96, 250880);
  run.pipeline = 12;
  EXPECT_EQ(BlocksAt(stack, run, 0), 7);
  EXPECT_EQ(BlocksAt(stack, run, 10), 7);
  EXPECT_EQ(BlocksAt(stack, run, 11), 1);
  // 70 blocks and two tables: five and a table, six, five and a table.
  run.model.layers = 70;
  EXPECT_EQ(BlocksAt(stack, run, 0), 6);
  EXPECT_EQ(BlocksAt(balanced, run, 0), 5);
  EXPECT_EQ(BlocksAt(balanced, run, 6), 6);
  EXPECT_EQ(BlocksAt(balanced, run, 11), 5);
  run.pipeline = 1;
  EXPECT_EQ(BlocksAt(balanced, run, 0), 70);
  run.pipeline = 70;
  EXPECT_EQ(BlocksAt(balanced, run, 1), 2);
  EXPECT_EQ(BlocksAt(balanced, run, 69), 1);
  // 126 blocks and two tables in eight stages for each of 16 ranks: seven blocks at both ends.
  run.model.layers = 126;
  run.pipeline = 16;
  run.stages_per_rank = 8;
  int64_t blocks = 0;
  for (int64_t position = 0; position < 16; ++position) blocks += BlocksAt(balanced, run, position);
  EXPECT_EQ(blocks, 126);
  EXPECT_EQ(BlocksAt(balanced, run, 15), 7);
}

TEST(RunMemory, OfExpertsIsTheirRanksShare) {
  const SoftwareStack stack = Stack("megatron-moe-2025");
  ModelSpec model = Spec(64);
  model.experts_per_token = 4;
  ClusterRun run;
  run.model = Decoder(model);
  run.tensor = 2;
  run.data = 16;
  run.global_batch = 16;
  run.expert = 16;
  const double divided = MemoryAt(stack, run, 0).parameters;
  // Half of each of four experts are as much as two whole ones; their optimizer's state is shared
  // by none in either case.
  run.expert = 32;
  run.expert_tensor = 1;
  EXPECT_DOUBLE_EQ(MemoryAt(stack, run, 0).parameters, divided);
  EXPECT_DOUBLE_EQ(SavedByBlock(stack, run), [&] {
    ClusterRun usual = run;
    usual.expert = 16;
    usual.expert_tensor = 0;
    return SavedByBlock(stack, usual);
  }());
  run.zero_stage = 1;
  const double alone = MemoryAt(stack, run, 0).optimizer;
  const BlockParameters block = ParametersOfBlock(run.model);
  EXPECT_NEAR(alone, 12 * (6 * block.experts / 32 + (6 * block.dense + 1024.0 * 32000) / 32), 1);
  // What norms and activations make is not kept where it is made again.
  ClusterRun again = run;
  again.recomputation = Recomputation::kElementwise;
  const double rows = 512.0 * 4 / 2;
  EXPECT_NEAR(SavedByBlock(stack, run) - SavedByBlock(stack, again),
              2 * (2 * 512.0 * 1024 / 2 + rows * 2048), 1);
}

TEST(RunMemory, IsThatOfTheFullestRank) {
  // 1.3 billion parameters in two stages, with sixteen sequences: the second one's logits do not
  // fit, and so the run was out of memory where the first rank had but 20 of 32 GiB.
  const SoftwareStack stack = Stack("megatron-deepspeed-2022");
  ClusterRun run = Gpt(24, 2048, 16, 50257);
  run.pipeline = 2;
  run.data = 4;
  run.zero_stage = 1;
  run.global_batch = 512;
  run.recomputation = Recomputation::kBlock;
  run.micro_batch = 16;
  const double device = FindAccelerator("V100-SXM2-32GB")->memory_bytes;
  EXPECT_LT(MemoryAt(stack, run, 0).Total(), 0.7 * device);
  EXPECT_DOUBLE_EQ(MemoryOf(stack, run).Total(), MemoryAt(stack, run, 1).Total());
  EXPECT_GT(MemoryOf(stack, run).Total(), 0.92 * device);
  run.micro_batch = 8;
  EXPECT_LT(MemoryOf(stack, run).Total(), 0.7 * device);
  EXPECT_NEAR(MemoryAt(stack, run, 0).Reserved() / kGiB, 15, 0.7);
}

TEST(RunMemory, OfTheOptimizerIsNotThereWithActivations) {
  const SoftwareStack stack = Stack("megatron-deepspeed-2022");
  ClusterRun run = Gpt(80, 14400, 96, 250880);
  run.tensor = 8;
  run.pipeline = 10;
  run.zero_stage = 1;
  run.global_batch = 2048;
  run.recomputation = Recomputation::kBlock;
  // A replica alone and two of them held 73 and 51 GiB: the half of sixteen bytes a parameter.
  EXPECT_NEAR(MemoryAt(stack, run, 0).Reserved() / kGiB, 73, 4);
  run.data = 2;
  EXPECT_NEAR(MemoryAt(stack, run, 0).Reserved() / kGiB, 51, 3);
  const RunMemory memory = MemoryAt(stack, run, 0);
  const double casts = 4 * memory.parameters / 2 / 2;
  EXPECT_GT(memory.cached, 0);
  EXPECT_DOUBLE_EQ(memory.activations + memory.workspace,
                   std::max(casts, memory.activations + SavedByBlock(stack, run)));
  EXPECT_DOUBLE_EQ(memory.Reserved() - memory.Total(),
                   std::min(casts, memory.activations + SavedByBlock(stack, run)));
}

}  // namespace
}  // namespace weft::planner
