// Lazy adapters of sparse weights on several ranks, against one rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kAllSteps = 10, kFirstWithAdapters = 6;
constexpr double kLosses = 2e-5, kNorms = 1e-4;

MeshCase OneRank(const std::string& family) {
  MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
  c.job.model.family = family;
  c.job.train.steps = kAllSteps;
  c.job.train.sparsity = {
      .method = "slope", .gradient_estimate = "exact", .adapter_rank = 3, .adapter_share = 0.4};
  c.job.train.eval_sequences = 8;
  c.job.train.log_every_steps = 2;
  c.job.optimizer.learning_rate = 1e-3;
  c.job.schedule.kind = "constant";
  c.plan.bucket_bytes = 4000;  // several buckets, which begin amid the adapters
  return c;
}

void ShardOver2(Plan& plan, int64_t zero_stage) {
  plan.mesh.data = 2;
  plan.zero_stage = zero_stage;
  plan.accumulation_steps = 1;
}

void CutIntoStages(Plan& plan) {
  plan.mesh.pipeline = 2;
  plan.stage_blocks = {1, 1};
}

struct MeshConfig {
  std::string name;
  void (*change)(Plan& plan);
};

const std::vector<MeshConfig>& Meshes() {
  static const auto* const meshes = new std::vector<MeshConfig>{
      {"zero 1", [](Plan& plan) { ShardOver2(plan, 1); }},
      {"zero 2, recomputed",
       [](Plan& plan) {
         ShardOver2(plan, 2);
         plan.block_memory_policy = {"recompute", "recompute"};
       }},
      {"zero 3", [](Plan& plan) { ShardOver2(plan, 3); }},
      {"pipeline 2", CutIntoStages},
      {"zero bubble 2",
       [](Plan& plan) {
         CutIntoStages(plan);
         plan.pipeline_schedule = "zero_bubble";
         plan.micro_batch = 1;
         plan.accumulation_steps = 4;
       }},
      {"tensor 2", [](Plan& plan) { plan.mesh.tensor = 2; }},
      {"tensor 2 with sequence parallelism, zero 3",
       [](Plan& plan) {
         ShardOver2(plan, 3);
         plan.mesh.tensor = 2;
         plan.sequence_parallel = true;
       }},
      {"tensor 2 x pipeline 2, zero 1",
       [](Plan& plan) {
         ShardOver2(plan, 1);
         CutIntoStages(plan);
         plan.mesh.tensor = 2;
         plan.micro_batch = 1;
         plan.accumulation_steps = 2;
       }},
  };
  return *meshes;
}

bool IsOfAdapter(const std::string& name) {
  return name.find(".adapter_") != std::string::npos;
}

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::fabs(value));
  return largest;
}

TEST(LazyAdaptersOnMeshes, MeshesFollowOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    const MeshCase c = OneRank(family);
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const auto& [name, values] : whole.state.tensors) {
      if (!IsOfAdapter(name)) continue;
      EXPECT_GT(LargestOf(values), 0) << name << " is trained";
    }
    for (const MeshConfig& mesh : Meshes()) {
      SCOPED_TRACE(std::string(family) + ", " + mesh.name);
      MeshCase on_mesh = c;
      mesh.change(on_mesh.plan);
      ExpectFollows(TrainOnMesh(on_mesh), whole, kLosses, kNorms);
    }
  }
}

TEST(LazyAdaptersOnMeshes, ContextParallelRanksFollowOneRank) {
  MeshCase c = OneRank("llama");
  const MeshOutcome whole = TrainOnMesh(c).front();
  c.plan.mesh.context = 2;
  c.plan.context_method = c.job.resources.context_method = "ring";
  c.plan.zero_stage = 1;
  ExpectFollows(TrainOnMesh(c), whole, kLosses, kNorms);
}

/// A training that has stopped, as files of its ranks.
struct StoppedRun {
  std::string path;
  CheckpointManifest manifest = {};
  TrainCounters counters = {};
  SavedState state = {};            ///< What the files have.
  std::vector<double> losses = {};  ///< Of the steps since it began, or went on.
};

/// Makes `steps` steps, from the beginning or from where `from` has stopped.
StoppedRun RunSteps(Env& env, const MeshCase& c, const StoppedRun* from, int64_t steps,
                    const std::string& path) {
  StoppedRun stopped{path};
  EXPECT_TRUE(env.CreateDirs(path).ok());
  std::mutex mutex;
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    if (from != nullptr) {
      {
        const std::lock_guard lock(mutex);
        const Status loaded = LoadTensors(env, from->path, from->manifest,
                                          rank.trainer->StateTensors(), ExtraTensors::kIgnore);
        WEFT_CHECK(loaded.ok(), loaded.message());
      }
      const Status restored = rank.trainer->Restored(from->counters);
      WEFT_CHECK(restored.ok(), restored.message());
    }
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      const auto report = rank.trainer->Step();
      WEFT_CHECK(report.ok(), report.status().message());
      losses.push_back(report->loss);
    }
    std::vector<NamedTensor> tensors = rank.trainer->StateTensors();
    std::erase_if(tensors, [](const NamedTensor& tensor) { return !tensor.saved; });
    const std::lock_guard lock(mutex);
    if (!tensors.empty()) {
      auto file = WriteTensorFile(env, path, world.rank(), c.ranks(), tensors);
      WEFT_CHECK(file.ok(), file.status().message());
      stopped.manifest.files.push_back(*file);
    }
    stopped.state.Add(tensors);
    if (world.rank() == 0) {
      stopped.counters = rank.trainer->counters();
      stopped.losses = losses;
    }
  });
  return stopped;
}

// Wherever a shard begins, and whatever else it has.
TEST(LazyAdaptersOnMeshes, AdaptersAndTheirMomentsStayBitForBitBeforeTheirSteps) {
  FaultEnv env;
  int64_t folders = 0;
  const auto after = [&](const MeshCase& c, int64_t steps) {
    return RunSteps(env, c, nullptr, steps, "/run" + std::to_string(++folders)).state.tensors;
  };
  for (const MeshConfig& mesh : Meshes()) {
    SCOPED_TRACE(mesh.name);
    MeshCase c = OneRank("llama");
    c.job.optimizer.weight_decay = 0.5;
    mesh.change(c.plan);
    const auto start = after(c, 0), before = after(c, kFirstWithAdapters);
    const auto second = after(c, kFirstWithAdapters + 2);
    int64_t found = 0;
    for (const auto& [name, values] : start) {
      if (!IsOfAdapter(name)) continue;
      ++found;
      EXPECT_EQ(before.at(name), values) << name;
      EXPECT_NE(second.at(name), values) << name;
    }
    EXPECT_EQ(found, 2 * 3 * 2 * 3) << "two blocks, three weights: values and moments of two";
  }
}

TEST(LazyAdaptersOnMeshes, OtherMeshesGoOnFromCheckpointsBeforeAndAfterTheyBegin) {
  FaultEnv env;
  const MeshCase c = OneRank("gpt2");
  const MeshOutcome whole = TrainOnMesh(c).front();
  const std::vector<MeshConfig> others = {
      {"tensor 2", [](Plan& plan) { plan.mesh.tensor = 2; }},
      {"pipeline 2", CutIntoStages},
      {"zero 3", [](Plan& plan) { ShardOver2(plan, 3); }},
      {"one rank", [](Plan&) {}},
  };
  for (const int64_t steps : {kFirstWithAdapters - 2, kFirstWithAdapters + 2}) {
    MeshCase data = c;
    ShardOver2(data.plan, 1);
    const std::string folder = "/after" + std::to_string(steps);
    const StoppedRun stopped = RunSteps(env, data, nullptr, steps, folder);
    StoppedRun last = stopped;
    for (const MeshConfig& mesh : others) {
      SCOPED_TRACE(mesh.name + " after " + std::to_string(steps));
      MeshCase other = c;
      mesh.change(other.plan);
      // From mesh to mesh the bits stay.
      last = RunSteps(env, other, &last, 0, folder + " read by " + mesh.name);
      EXPECT_EQ(last.state.tensors, stopped.state.tensors);
      const StoppedRun end =
          RunSteps(env, other, &stopped, kAllSteps - steps, folder + " on " + mesh.name);
      ASSERT_EQ(std::ssize(end.losses), kAllSteps - steps);
      for (size_t i = 0; i < end.losses.size(); ++i) {
        EXPECT_NEAR(end.losses[i], whole.reports[static_cast<size_t>(steps) + i].loss, kLosses);
      }
      for (const auto& [name, values] : end.state.tensors) {
        EXPECT_LE(Distance(values, whole.state.tensors.at(name)), 1e3 * kLosses) << name;
      }
    }
  }
}

/// Bytes of a rank for parameters and their updates.
double BytesOf(const MemoryBreakdown& memory) {
  return static_cast<double>(memory.parameters_bytes + memory.gradients_bytes +
                             memory.optimizer_bytes + memory.communication_bytes);
}

/// The same of the first rank, as it is predicted.
double PredictedBytes(const MeshCase& c) {
  const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {ProductKind::kNative});
  if (c.plan.mesh.pipeline == 1) return BytesOf(PredictMemory(inputs));
  const auto schedule = NamedSchedule(c.plan.pipeline_schedule, c.plan.mesh.pipeline,
                                      c.plan.pipeline_chunks, c.plan.accumulation_steps);
  WEFT_CHECK(schedule.ok(), schedule.status().message());
  return BytesOf(PredictPipelineRanks(inputs, c.plan.stage_blocks, *schedule).front());
}

TEST(LazyAdaptersOnMeshes, MemoryIsWhatIsPredicted) {
  struct MemoryConfig {
    const char* precision;
    MeshConfig mesh;
  };
  const std::vector<MemoryConfig> configs = {
      {"fp32", {"zero 1", [](Plan& plan) { ShardOver2(plan, 1); }}},
      {"fp32", {"zero 2", [](Plan& plan) { ShardOver2(plan, 2); }}},
      {"fp32", {"zero 3", [](Plan& plan) { ShardOver2(plan, 3); }}},
      {"bf16", {"zero 3", [](Plan& plan) { ShardOver2(plan, 3); }}},
      {"fp32", {"tensor 2", [](Plan& plan) { plan.mesh.tensor = 2; }}},
      {"fp32",
       {"pipeline 2",
        [](Plan& plan) {
          plan.mesh.pipeline = 2;
          plan.stage_blocks = {2, 2};
        }}},
  };
  for (const auto& [precision, mesh] : configs) {
    SCOPED_TRACE(mesh.name + " " + precision);
    MeshCase c = OneRank("gpt2");
    c.plan = TinyPlan(precision, 2, 2);
    mesh.change(c.plan);
    c.job.train.precision = precision;
    c.job.train.steps = 2;
    c.job.train.sparsity.adapter_rank = 16;
    c.job.model.layers = 4;
    c.job.model.width = 128;
    c.job.model.heads = 4;
    c.job.model.context = 64;
    MeshCase without = c;
    without.job.train.sparsity.adapter_rank = 0;
    without.job.train.sparsity.adapter_share = SparsitySpec().adapter_share;
    const auto measure = [](const MeshCase& of) {
      return BytesOf(TrainOnMesh(of).front().reports.back().step_memory);
    };
    const double adapters = measure(c) - measure(without);
    EXPECT_GT(adapters, 0);
    EXPECT_NEAR(PredictedBytes(c) - PredictedBytes(without), adapters, 0.1 * adapters);
  }
}

}  // namespace
}  // namespace weft::engine
