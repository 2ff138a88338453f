// Pruned trainings on meshes: the masks, and the training, of one rank.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/techniques/pruning/pruning_cost.h"
#include "worker/engine/techniques/pruning/testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/saved_files.h"

namespace weft::engine {
namespace {

struct PrunedMesh {
  std::string name;
  bool whole_network = true;  ///< Each rank has a part of all matrices, or all of them.
  std::string products = "auto";
  void (*change)(MeshCase& c);
};

struct PruningWay {
  std::string method, distribution;
  bool whole_network = false;  ///< Needed.
};

void UseExperts(MeshCase& c) {
  c.job.model.family = "llama";
  c.job.model.experts = 4;
  c.job.model.router_aux_loss = 0;
  c.plan.mesh.expert = 2;
}

/// Six steps of each way on each mesh are those of one rank.
void ExpectMasksOfOneRank(const std::vector<PrunedMesh>& meshes,
                          const std::vector<PruningWay>& ways) {
  std::map<std::string, MeshOutcome> on_one_rank;
  for (const PrunedMesh& mesh : meshes) {
    for (const PruningWay& way : ways) {
      if (way.whole_network && !mesh.whole_network) continue;
      SCOPED_TRACE(mesh.name + ", " + way.method + " " + way.distribution);
      MeshCase c{PrunedJob(PruningBy(way.method, 0.3, way.distribution)), TinyPlan("fp32", 2, 1)};
      c.job.train.steps = 6;
      c.job.train.pruning.products = mesh.products;
      if (way.method == "lottery_ticket") c.job.train.pruning.rounds = 1;
      mesh.change(c);
      c.plan.accumulation_steps =
          kPrunedBatch / c.plan.micro_batch / c.plan.mesh.data / c.plan.mesh.expert;
      const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
      const std::string training =
          c.job.model.family + " " + mesh.products + " " + way.method + " " + way.distribution;
      if (!on_one_rank.contains(training)) {
        MeshCase one = c.Whole();
        one.plan.zero_stage = one.plan.zero_shard_ranks = 0;
        on_one_rank.emplace(training, std::move(TrainOnMesh(one)[0]));
      }
      const MeshOutcome& whole = on_one_rank.at(training);
      // Scores of GraSP are differences of gradients: where these add up in another order some
      // weights at the threshold change places, which is a whole step of a mask.
      const double share = way.method == "grasp" ? 101 : 1;
      ExpectFollows(ranks, whole, share * 1e-5, share * 1e-4);
      for (const MeshOutcome& rank : ranks) {
        for (size_t step = 0; step < whole.reports.size(); ++step) {
          EXPECT_EQ(rank.reports[step].technique_metrics, whole.reports[step].technique_metrics);
        }
      }
    }
  }
}

TEST(PruningMeshesTest, RanksWithWholeMatricesTrainAsOneDoes) {
  const std::vector<PrunedMesh> meshes = {
      {.name = "data 2", .change = [](MeshCase& c) { c.plan.mesh.data = 2; }},
      {.name = "data 4, recomputed",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 4;
             c.plan.bucket_bytes = 2048;
             c.plan.block_memory_policy =
                 std::vector<std::string>(static_cast<size_t>(c.job.model.layers), "recompute");
           }},
      {.name = "ring 2",
       .change =
           [](MeshCase& c) {
             c.job.resources.context_method = "ring";
             c.plan.mesh.context = 2;
           }},
      {.name = "pipeline 2",
       .whole_network = false,
       .change =
           [](MeshCase& c) {
             c.plan.mesh.pipeline = 2;
             c.plan.stage_blocks = {1, 1};
           }},
      {.name = "zero bubble 2 x data 2",
       .whole_network = false,
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = c.plan.mesh.pipeline = 2;
             c.plan.pipeline_schedule = "zero_bubble";
             c.plan.stage_blocks = {1, 1};
           }},
      {.name = "expert 2", .whole_network = false, .change = UseExperts},
  };
  ExpectMasksOfOneRank(meshes, {{"rigl", "erk"},
                                {"set", "uniform"},
                                {"magnitude", "erk"},
                                {"snip", "uniform"},
                                {"snip", "global", true},
                                {"grasp", "uniform"},
                                {"synflow", "global", true},
                                {"lottery_ticket", "uniform"}});
}

// With ZeRO gradients, state and maybe values are in parts that are cut anywhere; tensor-parallel
// ranks have rows or columns of values, or of a grid both.
TEST(PruningMeshesTest, RanksWithPartsOfMatricesChooseTheMasksOfOne) {
  const std::vector<PrunedMesh> meshes = {
      {.name = "zero 1",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 2;
             c.plan.zero_stage = 1;
             c.plan.bucket_bytes = 2048;
           }},
      {.name = "zero 2",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 2;
             c.plan.zero_stage = 2;
           }},
      {.name = "zero 3 in groups of 2",
       .products = "dense",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 4;
             c.plan.zero_stage = 3;
             c.plan.zero_shard_ranks = 2;
           }},
      {.name = "tensor 2", .change = [](MeshCase& c) { c.plan.mesh.tensor = 2; }},
      {.name = "grid 2 x 2",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.tensor = 4;
             c.plan.tensor_rows = 2;
           }},
      {.name = "tensor 2 x zero 3",
       .products = "dense",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.tensor = c.plan.mesh.data = 2;
             c.plan.zero_stage = 3;
           }},
  };
  ExpectMasksOfOneRank(meshes, {{"rigl", "erk"},
                                {"set", "uniform"},
                                {"magnitude", "global", true},
                                {"snip", "uniform"},
                                {"grasp", "uniform"},
                                {"synflow", "global", true},
                                {"lottery_ticket", "uniform"}});
}

TEST(PruningMeshesTest, StagesAndExpertsHavePartsToo) {
  const std::vector<PrunedMesh> meshes = {
      {.name = "pipeline 2 x zero 1",
       .whole_network = false,
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = c.plan.mesh.pipeline = 2;
             c.plan.stage_blocks = {1, 1};
             c.plan.zero_stage = 1;
           }},
      {.name = "expert 2 x zero 2",
       .whole_network = false,
       .change =
           [](MeshCase& c) {
             UseExperts(c);
             c.plan.mesh.data = 2;
             c.plan.zero_stage = 2;
           }},
  };
  ExpectMasksOfOneRank(meshes, {{"rigl", "erk"}, {"snip", "uniform"}});
}

TEST(PruningMeshesTest, MasksAreReadOnOtherMeshesBitForBit) {
  MeshCase sharded{PrunedJob(PruningBy("rigl")), TinyPlan("fp32", 2, 2)};
  sharded.job.train.pruning.products = "dense";
  sharded.plan.mesh.tensor = sharded.plan.mesh.data = 2;
  sharded.plan.zero_stage = 3;
  MeshCase one = sharded.Whole();
  one.plan.zero_stage = 0;
  const auto on_ranks = [](const MeshCase& c, const auto& run) {
    RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
      MeshRank rank(c, world);
      run(rank, world);
    });
  };
  for (const auto& [from, to] : {std::pair{&sharded, &one}, std::pair{&one, &sharded}}) {
    SCOPED_TRACE(from == &one ? "from one rank" : "to one rank");
    SavedFiles files;
    TrainCounters counters;
    on_ranks(*from, [&](MeshRank& rank, Collective& world) {
      for (int64_t step = 0; step <= kPruningInterval; ++step) {
        ASSERT_TRUE(rank.trainer->Step().ok());  // the last one exchanges weights
      }
      files.Write(*rank.trainer, world);
      if (world.rank() == 0) counters = rank.trainer->counters();
    });
    SavedState read;
    std::mutex mutex;
    on_ranks(*to, [&](MeshRank& rank, Collective&) {
      const Status status = files.Read(*rank.trainer);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(rank.trainer->Restored(counters).ok());
      // The density is that of the masks which were read.
      const auto report = rank.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_NEAR(report->technique_metrics.at(std::string(kDensityMetric)), 0.3, 1e-3);
      const std::lock_guard lock(mutex);
      read.Add(rank.trainer->StateTensors());
    });
    int64_t masks = 0;
    for (const auto& [name, values] : files.state().tensors) {
      if (!name.starts_with("pruning/") || !name.ends_with("/mask")) continue;
      EXPECT_TRUE(read.tensors.at(name) == values) << name;
      ++masks;
    }
    EXPECT_EQ(masks, 8);
  }
}

// Masks are whole on each rank that shards updates, and those of its rows and columns on a
// tensor-parallel one. Copies to go back to are sharded with the updates.
TEST(PruningMeshesTest, MasksAreInThePredictedMemoryOfARank) {
  const std::vector<PrunedMesh> meshes = {
      {.name = "zero 1",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 2;
             c.plan.zero_stage = 1;
           }},
      {.name = "zero 3",
       .products = "dense",
       .change =
           [](MeshCase& c) {
             c.plan.mesh.data = 4;
             c.plan.zero_stage = 3;
           }},
      {.name = "tensor 2", .change = [](MeshCase& c) { c.plan.mesh.tensor = 2; }},
  };
  for (const PrunedMesh& mesh : meshes) {
    for (const char* method : {"rigl", "lottery_ticket"}) {
      SCOPED_TRACE(mesh.name + ", " + method);
      MeshCase c{PrunedJob(PruningBy(method)), TinyPlan("fp32", 2, 1)};
      c.job.model.width = 128;
      c.job.train.steps = 2;
      c.job.train.pruning.rounds = 1;
      c.job.train.pruning.products = mesh.products;
      mesh.change(c);
      c.plan.accumulation_steps = kPrunedBatch / c.plan.micro_batch / c.plan.mesh.data;
      const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)});
      int64_t measured = 0;
      for (const MeshOutcome& rank : TrainOnMesh(c)) {
        measured = std::max(measured, rank.reports.back().peak_memory.optimizer_bytes);
      }
      const auto predicted = static_cast<double>(PredictMemory(inputs).optimizer_bytes);
      EXPECT_NEAR(static_cast<double>(measured), predicted, 0.01 * predicted);
    }
  }
}

// A stage has the masks of its blocks. What is sharded is also of its embeddings.
TEST(PruningMeshesTest, MasksOfAStageAreInItsPredictedMemory) {
  MeshCase c{PrunedJob(PruningBy("rigl")), TinyPlan("fp32", 2, 2)};
  c.job.model.width = 128;
  c.job.model.vocab_size = 700;
  c.job.model.layers = 3;
  c.job.train.steps = 2;
  c.plan.mesh.data = c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {2, 1};
  c.plan.zero_stage = 1;
  const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)});
  const auto schedule = NamedSchedule(c.plan.pipeline_schedule, c.plan.mesh.pipeline,
                                      c.plan.pipeline_chunks, c.plan.accumulation_steps);
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  const std::vector<MemoryBreakdown> stages =
      PredictPipelineRanks(inputs, c.plan.stage_blocks, *schedule);
  const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
  ASSERT_EQ(ranks.size(), 2 * stages.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const auto measured =
        static_cast<double>(ranks[rank].reports.back().peak_memory.optimizer_bytes);
    const auto predicted = static_cast<double>(stages[rank / 2].optimizer_bytes);
    EXPECT_NEAR(measured, predicted, 0.01 * predicted);
  }
}

}  // namespace
}  // namespace weft::engine
