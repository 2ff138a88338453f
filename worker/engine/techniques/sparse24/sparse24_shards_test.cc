// 2:4 sparse MLPs of ranks that shard parameters (ZeRO stage 3).
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/rank_traffic.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/sparse24/sparse24_testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/saved_files.h"

namespace weft::engine {
namespace {

/// On two ranks that shard the parameters.
MeshCase OnShards(const JobSpec& job, const char* precision) {
  MeshCase c{job, TinyPlan(precision, 2)};
  c.plan.mesh.data = 2;
  c.plan.zero_stage = 3;
  return c;
}

// Masks are searched in the weights as they are trained, though those of bf16 products are gathered
// rounded.
TEST(Sparse24OnShards, RanksWithShardsOfTheParametersHaveTheMasksOfOneRank) {
  struct RunConfig {
    const char* precision;
    int64_t steps;  ///< The weights of later ones differ by what the products round.
  };
  const std::vector<RunConfig> ways = {{"fp32", 5}, {"bf16", 1}, {"bf16_pure", 1}};
  for (const auto& [precision, steps] : ways) {
    for (const char* method : {"masked_decay", "s_ste", "slope", "measure"}) {
      SCOPED_TRACE(std::string(precision) + " " + method);
      JobSpec job = JobOf(Exact(method), steps);
      job.train.sparsity.mask_interval = 2;
      job.optimizer.learning_rate = 1e-3;
      const MeshCase c = OnShards(job, precision);
      const SavedState whole = TrainOnMesh(c.Whole()).front().state;
      SavedState state;
      for (const MeshOutcome& rank : TrainOnMesh(c)) state.Add(rank.state);
      int64_t masks = 0, scales = 0;
      for (const auto& [name, bits] : whole.tensors) {
        const bool scale = name.starts_with(kSparse24Scales);
        if (!scale && !name.starts_with(kSparse24Masks) &&
            !name.starts_with(kSparse24BackwardMasks)) {
          continue;
        }
        ++(scale ? scales : masks);
        EXPECT_EQ(state.tensors.at(name), bits) << name;
      }
      EXPECT_EQ(masks, std::string(method) == "slope" ? 8 : 4);
      EXPECT_EQ(scales, std::string(method) == "s_ste" ? 4 : 0);
    }
  }
}

/// A training that has stopped.
struct SavedRun {
  SavedFiles files;
  TrainCounters counters;
  std::vector<double> losses;
};

/// Makes `steps` steps from where `before` has stopped; null: from the first one on.
std::unique_ptr<SavedRun> TrainFor(const MeshCase& c, SavedRun* before, int64_t steps) {
  auto run = std::make_unique<SavedRun>();
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    if (before != nullptr) {
      const Status read = before->files.Read(*rank.trainer);
      ASSERT_TRUE(read.ok()) << read.message();
      ASSERT_TRUE(rank.trainer->Restored(before->counters).ok());
    }
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      const auto report = rank.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      losses.push_back(report->loss);
    }
    run->files.Write(*rank.trainer, world);
    if (world.rank() > 0) return;
    run->counters = rank.trainer->counters();
    run->losses = std::move(losses);
  });
  return run;
}

// Scales of s_ste, too, which nobody finds again.
TEST(Sparse24OnShards, TrainingsGoOnFromCheckpointsOfShardsAndOfOneRank) {
  constexpr int64_t kFirst = 3, kRest = 3;
  for (const char* method : {"masked_decay", "s_ste"}) {
    SCOPED_TRACE(method);
    JobSpec job = JobOf(Exact(method));
    job.optimizer.learning_rate = 1e-3;
    const MeshCase shards = OnShards(job, "fp32");
    MeshCase one = shards.Whole();
    one.plan.zero_stage = 0;
    const auto all = TrainFor(shards, nullptr, kFirst + kRest);
    const auto first = TrainFor(shards, nullptr, kFirst);
    const auto rest = TrainFor(shards, first.get(), kRest);
    EXPECT_EQ(rest->losses, std::vector<double>(all->losses.begin() + kFirst, all->losses.end()));
    EXPECT_EQ(rest->files.state().tensors, all->files.state().tensors);

    const auto read = TrainFor(one, first.get(), 0);
    EXPECT_EQ(read->files.state().tensors, first->files.state().tensors);
    EXPECT_EQ(TrainFor(shards, read.get(), 0)->files.state().tensors, first->files.state().tensors);
    const auto alone = TrainFor(one, first.get(), kRest);
    ASSERT_EQ(alone->losses.size(), rest->losses.size());
    for (size_t step = 0; step < alone->losses.size(); ++step) {
      EXPECT_NEAR(alone->losses[step], rest->losses[step], 2e-5) << step;
    }
  }
}

/// A network whose padding hardly counts.
JobSpec LargerJob(const SparsitySpec& spec) {
  JobSpec job = JobOf(spec, 8);
  job.model.width = 128;
  job.model.heads = 4;
  job.model.layers = 4;
  job.model.context = 64;
  job.model.dropout = 0;
  return job;
}

// Thresholds of s_ste are of the weights as they are trained. Other matrices come as bf16 products
// read them.
TEST(Sparse24OnShards, WeightsWithSoftThresholdsAreGatheredAsTheyAreHeld) {
  for (const char* method : {"s_ste", "masked_decay"}) {
    for (const char* family : {"gpt2", "llama"}) {
      SCOPED_TRACE(std::string(method) + " " + family);
      JobSpec job = JobOf(Exact(method));
      job.model.family = family;
      const MeshCase c = OnShards(job, "bf16");
      RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
        MeshRank rank(c, world);
        const ParameterSet& parameters = rank.run.model->parameters();
        int64_t seen = 0;
        const auto look = [&](int64_t unit) {
          for (const int64_t i : SparseWeights(parameters)) {
            if (parameters[i].unit != unit) continue;
            EXPECT_EQ(parameters.value(i).dtype,
                      std::string(method) == "s_ste" ? DType::kF32 : DType::kBF16)
                << parameters[i].name;
            ++seen;
          }
          for (int64_t i = 0; i < parameters.size(); ++i) {
            if (parameters[i].unit != unit || !parameters[i].is_weight()) continue;
            if (!IsAttention(parameters[i].role)) continue;
            EXPECT_EQ(parameters.value(i).dtype, DType::kBF16) << parameters[i].name;
          }
          return OkStatus();
        };
        const Status status = ForEachUnit(rank.run.context, parameters, look);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(seen, std::string(family) == "llama" ? 6 : 4);
      });
    }
  }
}

TEST(Sparse24OnShards, RanksGatherWhatIsCounted) {
  for (const char* method : {"s_ste", "slope"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      const JobSpec job = LargerJob(Exact(method));
      MeshCase c = OnShards(job, precision);
      c.plan.micro_batch = 1;
      c.plan.accumulation_steps = 2;
      const auto counted =
          static_cast<double>(TrafficOfStep(MemoryInputsOf(job, c.plan, {})).gathered);
      RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
        MeshRank rank(c, world);
        const auto gathered = [&] {
          return rank.ranks.groups.Along(c.reduction_axes().gradients)
              ->account()
              .totals(CollectiveKind::kAllGather)
              .bytes;
        };
        ASSERT_TRUE(rank.trainer->Step().ok());
        const double before = gathered();
        ASSERT_TRUE(rank.trainer->Step().ok());
        EXPECT_NEAR(gathered() - before, counted, 0.01 * counted);
      });
    }
  }
}

TEST(Sparse24OnShards, MemoryOfShardsIsWhatIsPredicted) {
  std::vector<SparsitySpec> specs;
  for (const char* method : {"masked_decay", "s_ste", "slope", "step", "measure"}) {
    specs.push_back({.method = method, .mask_interval = 2, .dense_share = 0});
  }
  specs.push_back(specs.front());
  specs.back().dense_share = 0.5;
  for (const SparsitySpec& spec : specs) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(spec.method + " " + precision + " " + std::to_string(spec.dense_share));
      const JobSpec job = LargerJob(spec);
      const MeshCase c = OnShards(job, precision);
      const MemoryBreakdown measured = TrainOnMesh(c).front().reports.back().peak_memory;
      const MemoryMachine machine{ProductsOf(PrecisionOf(precision).products)};
      const MemoryBreakdown predicted = PredictMemory(MemoryInputsOf(job, c.plan, machine));
      const auto near = [](int64_t own, int64_t truth) {
        EXPECT_NEAR(static_cast<double>(own) / static_cast<double>(truth), 1, 0.02);
      };
      near(predicted.parameters_bytes, measured.parameters_bytes);
      near(predicted.gradients_bytes, measured.gradients_bytes);
      near(predicted.optimizer_bytes, measured.optimizer_bytes);
    }
  }
}

}  // namespace
}  // namespace weft::engine
