// Low-rank cores of several ranks, against one rank.
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

/// Every second step trains the core alone.
MeshCase CoreCase(const std::string& family = "gpt2") {
  MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
  c.job.model.family = family;
  c.job.model.low_rank_core.rank = 6;
  c.job.model.low_rank_core.core_every = 2;
  c.job.train.steps = 6;
  c.job.train.eval_sequences = 8;
  return c;
}

void ExpectFollowsOneRank(const MeshCase& c) {
  const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
  const MeshOutcome whole = TrainOnMesh(c.Whole())[0];
  ExpectFollows(ranks, whole, 1e-5, 1e-4);
  const double core = whole.evaluation_metrics.at("core_eval_loss_nats");
  EXPECT_NE(core, whole.evaluation);
  for (const MeshOutcome& rank : ranks) {
    EXPECT_NEAR(rank.evaluation_metrics.at("core_eval_loss_nats"), core, 1e-5);
  }
}

TEST(LowRankCoreMeshes, RanksFollowOneRank) {
  struct RunConfig {
    std::string name;
    void (*change)(Plan& plan);
  };
  const std::vector<RunConfig> ways = {
      {"tensor 2", [](Plan& plan) { plan.mesh.tensor = 2; }},
      {"tensor 2 with sequence parallelism",
       [](Plan& plan) {
         plan.mesh.tensor = 2;
         plan.sequence_parallel = true;
       }},
      {"tensor 2 x data 2",
       [](Plan& plan) {
         plan.mesh.tensor = plan.mesh.data = 2;
         plan.accumulation_steps = 1;
       }},
      {"pipeline 2",
       [](Plan& plan) {
         plan.mesh.pipeline = 2;
         plan.stage_blocks = {1, 1};
       }},
      {"data 2 with ZeRO",
       [](Plan& plan) {
         plan.mesh.data = 2;
         plan.zero_stage = 1;
         plan.accumulation_steps = 1;
       }},
      {"tensor 2 x data 2 with sharded gradients",
       [](Plan& plan) {
         plan.mesh.tensor = plan.mesh.data = 2;
         plan.zero_stage = 2;
         plan.micro_batch = 1;
       }},
      {"tensor 2 x pipeline 2 x data 2 with ZeRO",
       [](Plan& plan) {
         plan.mesh.tensor = plan.mesh.pipeline = plan.mesh.data = 2;
         plan.zero_stage = 1;
         plan.stage_blocks = {1, 1};
         plan.micro_batch = 1;
       }},
      {"zero bubble 2 x tensor 2",
       [](Plan& plan) {
         plan.mesh.pipeline = plan.mesh.tensor = 2;
         plan.pipeline_schedule = "zero_bubble";
         plan.stage_blocks = {1, 1};
         plan.micro_batch = 1;
         plan.accumulation_steps = 4;
       }},
  };
  for (const char* family : {"gpt2", "llama"}) {
    for (const RunConfig& way : ways) {
      SCOPED_TRACE(std::string(family) + ", " + way.name);
      MeshCase c = CoreCase(family);
      way.change(c.plan);
      ExpectFollowsOneRank(c);
    }
  }
}

// A stage has some of the rests that the pattern names, or none.
TEST(LowRankCoreMeshes, GroupsNameTheRestsOfAllStages) {
  MeshCase c = CoreCase();
  c.job.optimizer.weight_decay = 0.5;
  c.job.optimizer.groups = {
      {.parameters = {"*.rest"}, .learning_rate_scale = 0.5, .weight_decay = 0.0},
      {.parameters = {"*.h.1.*.core_in"}, .learning_rate_scale = 2, .weight_decay = {}}};
  c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {1, 1};
  ExpectFollowsOneRank(c);
}

// The factors of each rank are parts of those of the whole weight.
TEST(LowRankCoreMeshes, TensorParallelRanksStartAtTheNearestCoreOfImportedWeights) {
  MeshCase c = CoreCase();
  ModelSpec plain_model = c.job.model;
  plain_model.low_rank_core = {};
  TinyRun plain(plain_model, ModelOptionsOf(TinyPlan("fp32")));
  c.start = ::testing::TempDir() + "imported_cores";
  ASSERT_TRUE(ExportWeights(Env::Posix(), c.start, *plain.model, {}).ok());
  c.plan.mesh.tensor = 2;
  ExpectFollowsOneRank(c);
}

// Each of two ranks has 16 of the 32 columns of the weight behind the heads.
TEST(LowRankCoreMeshes, TheRankOfTheCoreMayBeLargerThanASideOfAPart) {
  MeshCase c = CoreCase();
  c.job.model.low_rank_core.rank = 20;
  c.plan.mesh.tensor = 2;
  ExpectFollowsOneRank(c);
}

TEST(LowRankCoreMeshes, TensorParallelRanksSumTheFactorsThatAllHave) {
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(sequence);
    std::map<bool, double> sent;
    std::map<bool, int64_t> partial;
    for (const bool core : {true, false}) {
      MeshCase c = CoreCase();
      if (!core) c.job.model.low_rank_core = {};
      c.plan.mesh.tensor = 2;
      c.plan.sequence_parallel = sequence;
      partial[core] = ModelShape(c.job.model, 2, sequence).partial_gradients;
      RunRanks(2, std::chrono::seconds(20), [&](Collective& world) {
        MeshRank rank(c, world);
        const auto bytes = [&] {
          return rank.ranks.tensor->group().account().totals(CollectiveKind::kAllReduce).bytes;
        };
        const double before = bytes();
        ASSERT_TRUE(rank.trainer->Step().ok());
        if (world.rank() == 0) sent[core] = bytes() - before;
      });
    }
    // Ranks sum, for each of 2 blocks, the inputs of the first product of both sub-layers, of 32
    // columns, and the results of the second one.
    EXPECT_EQ(partial[true] - partial[false], 2 * 4 * 6 * 32);
    EXPECT_EQ(sent[true] - sent[false], 4.0 * static_cast<double>(partial[true] - partial[false]));
  }
}

TEST(LowRankCoreMeshes, ARankOfTensorParallelRanksHasItsShareOfMemoryAndWork) {
  MeshCase c = CoreCase();
  c.job.model.width = 128;
  c.job.model.heads = 4;
  c.job.model.low_rank_core.rank = 32;
  const StepWork whole = StepWorkOf(ShapeOf(c.job), c.job.train);
  c.plan.mesh.tensor = c.job.resources.tensor_parallel = 2;
  EXPECT_DOUBLE_EQ(2 * StepWorkOf(ShapeOfRank(c.job), c.job.train).Flops(), whole.Flops());

  const MemoryBreakdown predicted =
      CountedMemory(MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)}));
  const MemoryBreakdown measured = TrainOnMesh(c)[0].reports.back().peak_memory;
  const auto near = [](const char* what, int64_t counted, int64_t taken) {
    EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(taken),
                0.02 * static_cast<double>(taken))
        << what;
  };
  near("parameters", predicted.parameters_bytes, measured.parameters_bytes);
  near("gradients", predicted.gradients_bytes, measured.gradients_bytes);
  near("optimizer", predicted.optimizer_bytes, measured.optimizer_bytes);
}

}  // namespace
}  // namespace weft::engine
