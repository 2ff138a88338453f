// The search for an Early-Bird ticket on meshes: the masks, and the training, of one rank.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/model/technique_cost.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/structured_pruning/structured_pruning_cost.h"
#include "worker/engine/techniques/structured_pruning/testing.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/saved_files.h"

namespace weft::engine {
namespace {

struct SearchMesh {
  std::string name;
  void (*change)(MeshCase& c);
};

void TensorByPipeline(MeshCase& c) {
  c.plan.mesh.tensor = c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {1, 1};
}

template <class Run>
void OnRanks(const MeshCase& c, const Run& run) {
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    run(rank, world);
  });
}

/// By name.
std::map<std::string, std::vector<float>> MasksOf(Trainer& trainer) {
  const StateName name = TicketMasks();
  std::map<std::string, std::vector<float>> masks;
  for (const NamedTensor& tensor : trainer.StateTensors()) {
    if (tensor.name.starts_with(name.prefix) && tensor.name.ends_with(name.suffix)) {
      masks[tensor.name] = ValuesOf(tensor.view);
    }
  }
  return masks;
}

void ExpectSearchOfOneRank(const std::string& family, const std::vector<SearchMesh>& meshes) {
  for (const SearchMesh& mesh : meshes) {
    SCOPED_TRACE(family + ", " + mesh.name);
    MeshCase c{SearchJob(family), TinyPlan("fp32", 2, 1)};
    c.job.train.steps = 6;
    mesh.change(c);
    c.plan.accumulation_steps = 4 / c.plan.micro_batch / c.plan.mesh.data;
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    const MeshOutcome whole = TrainOnMesh(c.Whole())[0];
    ExpectFollows(ranks, whole, 1e-5, 1e-4);
    for (const MeshOutcome& rank : ranks) {
      for (size_t step = 0; step < whole.reports.size(); ++step) {
        EXPECT_EQ(rank.reports[step].technique_metrics, ranks[0].reports[step].technique_metrics);
        EXPECT_EQ(rank.reports[step].technique_metrics.size(),
                  whole.reports[step].technique_metrics.size());
      }
    }
  }
}

TEST(StructuredPruningMeshes, RanksSearchAsOneDoes) {
  ExpectSearchOfOneRank("llama", {{"data 2", [](MeshCase& c) { c.plan.mesh.data = 2; }},
                                  {"ring 2, recomputed",
                                   [](MeshCase& c) {
                                     c.job.resources.context_method = "ring";
                                     c.plan.mesh.context = 2;
                                     c.plan.block_memory_policy =
                                         std::vector<std::string>(c.job.model.layers, "recompute");
                                   }},
                                  {"tensor 2", [](MeshCase& c) { c.plan.mesh.tensor = 2; }},
                                  {"tensor 2 with sequence parallelism",
                                   [](MeshCase& c) {
                                     c.plan.mesh.tensor = 2;
                                     c.plan.sequence_parallel = true;
                                   }},
                                  {"tensor 2 x data 2 with sharded gradients",
                                   [](MeshCase& c) {
                                     c.plan.mesh.tensor = c.plan.mesh.data = 2;
                                     c.plan.zero_stage = 2;
                                     c.plan.micro_batch = 1;
                                   }},
                                  {"pipeline 2",
                                   [](MeshCase& c) {
                                     c.plan.mesh.pipeline = 2;
                                     c.plan.stage_blocks = {1, 1};
                                   }},
                                  {"zero bubble 2 x tensor 2",
                                   [](MeshCase& c) {
                                     TensorByPipeline(c);
                                     c.plan.pipeline_schedule = "zero_bubble";
                                     c.plan.micro_batch = 1;
                                   }},
                                  {"tensor 2 x pipeline 2 x data 2 with ZeRO", [](MeshCase& c) {
                                     TensorByPipeline(c);
                                     c.plan.mesh.data = 2;
                                     c.plan.zero_stage = 1;
                                     c.plan.micro_batch = 1;
                                   }}});
  // Neurons alone, and a bias behind them.
  ExpectSearchOfOneRank("gpt2", {{"tensor 2 x pipeline 2", TensorByPipeline}});
}

/// Gives the coefficients of a weight magnitudes from 1 to 2: the largest last or, where they are
/// `falling`, first.
void SetCoefficients(ParameterSet& parameters, int64_t index, bool falling) {
  std::vector<float> values(static_cast<size_t>(parameters[index].logical_shape().Elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t place = falling ? values.size() - 1 - i : i;
    const float magnitude = 1 + static_cast<float>(place) / static_cast<float>(values.size());
    values[i] = i % 2 == 0 ? magnitude : -magnitude;
  }
  ASSERT_TRUE(SetWholeValue(parameters, index, std::move(values)).ok());
}

// The largest coefficients are all on one of the tensor-parallel ranks, and those of one block
// alone change before the second mask.
TEST(StructuredPruningMeshes, UnitsAreRankedOverTensorParallelRanksAndMasksComparedOverStages) {
  const auto distances_of = [](const MeshCase& c) {
    std::vector<double> distances(static_cast<size_t>(c.ranks()), -1);
    OnRanks(c, [&](MeshRank& rank, Collective& world) {
      ParameterSet& parameters = rank.run.model->parameters();
      const auto set = [&](int64_t changed_block) {
        for (int64_t i = 0; i < parameters.size(); ++i) {
          if (!parameters[i].name.ends_with(".coefficients")) continue;
          SetCoefficients(parameters, i, parameters[i].block == changed_block);
        }
        ASSERT_TRUE(rank.trainer->Restored(rank.trainer->counters()).ok());
      };
      set(-1);
      ASSERT_TRUE(rank.trainer->Step().ok());
      for (const auto& [name, mask] : MasksOf(*rank.trainer)) {
        // Of 2 pairs of heads, or of 128 neurons.
        const size_t kept = mask.size() == 2 ? 1 : 80;
        std::vector<float> expected(mask.size(), 1.0f);
        std::fill_n(expected.begin(), mask.size() - kept, 0.0f);
        EXPECT_EQ(mask, expected) << name;
      }
      set(1);
      const auto second = rank.trainer->Step();
      ASSERT_TRUE(second.ok()) << second.status().message();
      distances[static_cast<size_t>(world.rank())] =
          second->technique_metrics.at(std::string(kMaskDistanceMetric));
    });
    return distances;
  };
  MeshCase c{SearchJob("llama"), TinyPlan("fp32", 2, 2)};
  c.job.model.structured_pruning.interval = 1;
  c.job.optimizer.learning_rate = 1e-6;  // magnitudes keep their order
  TensorByPipeline(c);
  // Both pairs of heads of one of the two blocks.
  for (const double distance : distances_of(c)) EXPECT_EQ(distance, 0.5);
  for (const double distance : distances_of(c.Whole())) EXPECT_EQ(distance, 0.5);
}

TEST(StructuredPruningMeshes, SearchesGoOnOnOtherMeshesBitForBit) {
  MeshCase mesh{SearchJob("llama"), TinyPlan("fp32", 1, 2)};
  TensorByPipeline(mesh);
  mesh.plan.mesh.data = 2;
  mesh.plan.zero_stage = 1;
  MeshCase one = mesh.Whole();
  one.plan.zero_stage = 0;
  for (const auto& [from, to] : {std::pair{&mesh, &one}, std::pair{&one, &mesh}}) {
    SCOPED_TRACE(from == &one ? "from one rank" : "to one rank");
    SavedFiles files;
    TrainCounters counters;
    OnRanks(*from, [&](MeshRank& rank, Collective& world) {
      for (int64_t step = 0; step < 4; ++step) {
        ASSERT_TRUE(rank.trainer->Step().ok());
      }
      files.Write(*rank.trainer, world);
      if (world.rank() == 0) counters = rank.trainer->counters();
    });
    SavedState read;
    std::mutex mutex;
    OnRanks(*to, [&](MeshRank& rank, Collective&) {
      const Status status = files.Read(*rank.trainer);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(rank.trainer->Restored(counters).ok());
      const std::lock_guard lock(mutex);
      read.Add(rank.trainer->StateTensors());
    });
    EXPECT_EQ(read.tensors, files.state().tensors);
    EXPECT_EQ(read.saved, files.state().saved);
    const std::vector<float>& search = read.tensors.at("structured_pruning/search");
    EXPECT_EQ(search[0], 2) << "masks so far";
    int64_t masks = 0, initial = 0;
    for (const auto& [name, values] : read.tensors) {
      if (name.ends_with("/initial")) ++initial;
      if (!name.ends_with("/mask")) continue;
      EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0), values.size() == 2 ? 1 : 80);
      ++masks;
    }
    EXPECT_EQ(masks, 4);
    EXPECT_GT(initial, 4);
  }
}

// Each rank has the coefficients of its own columns: no gradient of them is summed.
TEST(StructuredPruningMeshes, TensorParallelRanksSendNoMoreThanWithoutASearch) {
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(sequence);
    std::map<bool, double> sent;
    std::map<bool, int64_t> partial;
    for (const bool search : {true, false}) {
      MeshCase c{SearchJob("llama"), TinyPlan("fp32", 2, 2)};
      if (!search) c.job.model.structured_pruning = {};
      c.plan.mesh.tensor = 2;
      c.plan.sequence_parallel = sequence;
      partial[search] = ModelShape(c.job.model, 2, sequence).partial_gradients;
      OnRanks(c, [&](MeshRank& rank, Collective& world) {
        const auto bytes = [&] {
          return rank.ranks.tensor->group().account().totals(CollectiveKind::kAllReduce).bytes;
        };
        const double before = bytes();
        ASSERT_TRUE(rank.trainer->Step().ok());
        if (world.rank() == 0) sent[search] = bytes() - before;
      });
    }
    EXPECT_EQ(partial[true], partial[false]);
    EXPECT_EQ(sent[true], sent[false]);
  }
}

TEST(StructuredPruningMeshes, ATensorParallelRankHasItsShareOfMemoryAndWork) {
  MeshCase c{SearchJob("llama"), TinyPlan("fp32", 2, 2)};
  c.job.model.width = 128;
  c.job.train.steps = 2;
  const StepWork whole = StepWorkOf(ShapeOf(c.job), c.job.train);
  c.plan.mesh.tensor = c.job.resources.tensor_parallel = 2;
  EXPECT_GT(whole.Flops(), 0);
  EXPECT_DOUBLE_EQ(2 * StepWorkOf(ShapeOfRank(c.job), c.job.train).Flops(), whole.Flops());

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

TEST(StructuredPruningMeshes, AStageHasTheFirstWeightsOfItsBlocksInItsPredictedMemory) {
  MeshCase c{SearchJob("llama"), TinyPlan("fp32", 2, 2)};
  c.job.model.width = 128;
  c.job.model.vocab_size = 700;
  c.job.model.layers = 3;
  c.job.train.steps = 2;
  c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {2, 1};
  const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)});
  const auto schedule = NamedSchedule(c.plan.pipeline_schedule, c.plan.mesh.pipeline,
                                      c.plan.pipeline_chunks, c.plan.accumulation_steps);
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  const std::vector<MemoryBreakdown> stages =
      PredictPipelineRanks(inputs, c.plan.stage_blocks, *schedule);
  const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
  ASSERT_EQ(ranks.size(), stages.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const auto measured =
        static_cast<double>(ranks[rank].reports.back().peak_memory.optimizer_bytes);
    const auto predicted = static_cast<double>(stages[rank].optimizer_bytes);
    EXPECT_NEAR(measured, predicted, 0.01 * predicted);
  }
}

}  // namespace
}  // namespace weft::engine
