// Pixelated Butterflies on tensor-parallel ranks, against one rank.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/spec/tensor_parallel.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

/// All matrices are the sum of blocks and a matrix of low rank.
MeshCase PixelflyCase(const std::string& family) {
  MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
  c.job.model.family = family;
  c.job.model.width = 64;
  StructuredMatricesSpec& spec = c.job.model.structured_matrices;
  spec.kind = "pixelfly";
  spec.layers = {"*"};
  spec.block_size = 16;
  spec.density = 1;
  spec.low_rank_share = 0.5;
  c.job.train.steps = 4;
  c.job.train.eval_sequences = 8;
  return c;
}

void ExpectFollowsOneRank(const MeshCase& c) {
  ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole())[0], 1e-5, 1e-4);
}

TEST(PixelflyMeshes, RanksFollowOneRank) {
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
      {"tensor 2 x data 2 with sharded gradients",
       [](Plan& plan) {
         plan.mesh.tensor = plan.mesh.data = 2;
         plan.zero_stage = 2;
         plan.micro_batch = 1;
       }},
      {"tensor 2 x pipeline 2",
       [](Plan& plan) {
         plan.mesh.tensor = plan.mesh.pipeline = 2;
         plan.stage_blocks = {1, 1};
       }},
  };
  for (const char* family : {"gpt2", "llama"}) {
    for (const RunConfig& way : ways) {
      SCOPED_TRACE(std::string(family) + ", " + way.name);
      MeshCase c = PixelflyCase(family);
      way.change(c.plan);
      ExpectFollowsOneRank(c);
    }
  }
}

// Each rank finds the tensors that are nearest to the whole weight, and takes its part of them.
TEST(PixelflyMeshes, RanksStartNearImportedWeights) {
  MeshCase c = PixelflyCase("gpt2");
  ModelSpec plain_model = c.job.model;
  plain_model.structured_matrices = {};
  TinyRun plain(plain_model, ModelOptionsOf(TinyPlan("fp32")));
  c.start = ::testing::TempDir() + "imported_butterflies";
  ASSERT_TRUE(ExportWeights(Env::Posix(), c.start, *plain.model, {}).ok());
  c.plan.mesh.tensor = 2;
  ExpectFollowsOneRank(c);
}

TEST(PixelflyMeshes, RanksHaveTheTensorsThatAreCounted) {
  constexpr int kRanks = 2;
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    const ModelSpec model = PixelflyCase(family).job.model;
    RunRanks(kRanks, std::chrono::seconds(20), [&](Collective& group) {
      const Result<TensorParallel> ranks = TensorParallel::New(&group, false, 1);
      ASSERT_TRUE(ranks.ok());
      ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
      options.tensor = &*ranks;
      const TinyRun run(model, options);
      const ParameterSet& parameters = run.model->parameters();
      int64_t tensors = 0, partial = 0;
      for (const ParameterInfo& info : ParametersOfRank(model, kRanks, 1)) {
        if (info.in_place_of.empty()) continue;
        const Result<int64_t> index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const Parameter& parameter = parameters[*index];
        EXPECT_TRUE(parameter.shape == Shape({info.shape[0], info.shape[1]})) << info.name;
        EXPECT_EQ(parameter.parts, info.parts) << info.name;
        EXPECT_EQ(parameters.Partial(*index), info.of_whole_weight) << info.name;
        if (parameters.Partial(*index)) partial += parameter.shape.Elements();
        ++tensors;
      }
      EXPECT_EQ(tensors, 2 * 3 * (family == std::string("llama") ? 7 : 4));
      EXPECT_GT(partial, 0);
      EXPECT_EQ(partial, ModelShape(model, kRanks, false).partial_gradients);
    });
  }
}

TEST(PixelflyMeshes, RanksTakeThePredictedMemory) {
  MeshCase c = PixelflyCase("llama");
  c.job.model.width = 128;
  c.job.train.steps = 2;
  c.plan.mesh.tensor = c.job.resources.tensor_parallel = 2;
  const MemoryBreakdown predicted =
      CountedMemory(MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)}));
  for (const MeshOutcome& rank : TrainOnMesh(c)) {
    const MemoryBreakdown& measured = rank.reports.back().peak_memory;
    const auto near = [](const char* what, int64_t counted, int64_t taken, double share) {
      EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(taken),
                  share * static_cast<double>(taken))
          << what;
    };
    // Few tokens have rows in whole tiles.
    near("parameters", predicted.parameters_bytes, measured.parameters_bytes, 0.02);
    near("gradients", predicted.gradients_bytes, measured.gradients_bytes, 0.02);
    near("optimizer", predicted.optimizer_bytes, measured.optimizer_bytes, 0.01);
  }
}

TEST(PixelflyMeshes, RanksHaveAsManyWholeBlocksAsEachOther) {
  const auto refusal = [](const ModelSpec& model) {
    return std::string(CheckTensorParallel(model, 4, 1).message());
  };
  ModelSpec model = PixelflyCase("gpt2").job.model;
  model.heads = 4;
  EXPECT_EQ(refusal(model), "");
  model.structured_matrices.block_size = 32;
  EXPECT_THAT(refusal(model), ::testing::HasSubstr("4 tensor-parallel ranks would cut blocks of "
                                                   "transformer.h.0.attn.c_attn.weight"));
  // Six columns of blocks for four of the butterfly: two, one, two and one.
  model.width = 96;
  model.structured_matrices = {};
  model.structured_matrices.kind = "pixelfly";
  model.structured_matrices.block_size = 16;
  model.structured_matrices.density = 0.3;
  model.structured_matrices.low_rank_share = 0;
  EXPECT_THAT(refusal(model),
              ::testing::HasSubstr("4 tensor-parallel ranks would have different numbers of the "
                                   "blocks of transformer.h.0.mlp.c_fc.weight"));
}

}  // namespace
}  // namespace weft::engine
