// Trainings whose bits do not depend on the mesh (train.deterministic mesh).
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 3;

/// A mesh and its plan.
struct RunConfig {
  std::string name = {};
  int64_t data = 1;
  int64_t zero_stage = 0;
  int64_t zero_shard_ranks = 0;
  int64_t pipeline = 1;
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::string recompute = "keep";
};

ModelSpec Model(const std::string& family) {
  ModelSpec spec = TinyModel();
  spec.layers = 4;
  spec.untied_classifier = true;
  if (family == "llama") {
    spec.family = "llama";
    spec.width = 64;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.mlp_width = 40;
  } else {
    spec.dropout = 0.1;
    spec.attention_dropout = 0.1;
  }
  return spec;
}

JobSpec Job(const std::string& family, const std::string& precision, int64_t logical) {
  JobSpec job = TinyJob(kBatch);
  job.model = Model(family);
  job.train.steps = kSteps;
  job.train.precision = precision;
  job.train.deterministic = "mesh";
  job.train.logical_micro_batch = logical;
  job.train.gradient_clip_norm = 0.1;  // below the norms, so that all weights depend on them
  job.train.eval_sequences = 7;
  return job;
}

MeshCase CaseOf(const JobSpec& job, const RunConfig& way) {
  const int64_t micro_batch = job.train.logical_micro_batch;
  MeshCase c{job, TinyPlan(job.train.precision, micro_batch, kBatch / way.data / micro_batch)};
  c.plan.mesh.data = way.data;
  c.plan.zero_stage = way.zero_stage;
  c.plan.zero_shard_ranks = way.zero_shard_ranks;
  c.plan.bucket_bytes = 16384;  // several buckets
  c.plan.threads_per_rank = 1;
  c.plan.block_memory_policy.assign(static_cast<size_t>(job.model.layers), way.recompute);
  c.plan.mesh.pipeline = way.pipeline;
  if (way.pipeline > 1) {
    c.plan.pipeline_schedule = way.schedule;
    c.plan.pipeline_chunks = way.chunks;
    c.plan.stage_blocks.assign(static_cast<size_t>(way.pipeline * way.chunks),
                               job.model.layers / (way.pipeline * way.chunks));
  }
  return c;
}

/// What a training comes to, wherever it ran.
struct Bits {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> state;
};

Bits BitsOf(const std::vector<MeshOutcome>& ranks) {
  Bits bits;
  for (const StepReport& report : ranks[0].reports) {
    bits.losses.push_back(report.loss);
    bits.norms.push_back(report.gradient_norm);
  }
  bits.evaluation = ranks[0].evaluation;
  SavedState state;
  for (const MeshOutcome& rank : ranks) state.Add(rank.state);
  bits.state = state.tensors;
  return bits;
}

Bits Train(const JobSpec& job, const RunConfig& way) {
  return BitsOf(TrainOnMesh(CaseOf(job, way)));
}

void ExpectSame(const Bits& bits, const Bits& expected) {
  EXPECT_EQ(bits.losses, expected.losses);
  EXPECT_EQ(bits.norms, expected.norms);
  EXPECT_EQ(bits.evaluation, expected.evaluation);
  ASSERT_EQ(bits.state.size(), expected.state.size());
  for (const auto& [name, values] : expected.state) {
    ASSERT_TRUE(bits.state.contains(name)) << name;
    EXPECT_EQ(bits.state.at(name), values) << name;
  }
}

std::vector<RunConfig> RunConfigs() {
  return {
      {.name = "data 2", .data = 2},
      {.name = "data 4", .data = 4},
      {.name = "data 8", .data = 8},
      {.name = "data 2, recomputed", .data = 2, .recompute = "recompute"},
      {.name = "zero 1 of 2", .data = 2, .zero_stage = 1},
      {.name = "zero 2 of 2", .data = 2, .zero_stage = 2},
      {.name = "zero 3 of 2", .data = 2, .zero_stage = 3},
      {.name = "zero 1 of 4", .data = 4, .zero_stage = 1},
      {.name = "zero 2 of 4", .data = 4, .zero_stage = 2},
      {.name = "zero 3 of 8", .data = 8, .zero_stage = 3},
      {.name = "zero 1 of 4 in twos", .data = 4, .zero_stage = 1, .zero_shard_ranks = 2},
      {.name = "zero 3 of 4 in twos", .data = 4, .zero_stage = 3, .zero_shard_ranks = 2},
      {.name = "1f1b of 2", .pipeline = 2},
      {.name = "1f1b of 4", .pipeline = 4},
      {.name = "gpipe of 2", .pipeline = 2, .schedule = "gpipe"},
      {.name = "zero bubble of 2", .pipeline = 2, .schedule = "zero_bubble"},
      {.name = "interleaved of 2", .pipeline = 2, .schedule = "interleaved", .chunks = 2},
      {.name = "data 2 of 1f1b of 2", .data = 2, .pipeline = 2},
      {.name = "zero 1 of 2 of 1f1b of 2", .data = 2, .zero_stage = 1, .pipeline = 2},
  };
}

class DeterministicMesh : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(DeterministicMesh, AnyMeshHasTheBitsOfOneRank) {
  const JobSpec job = Job(GetParam().first, GetParam().second, 1);
  const Bits one = Train(job, {});
  ASSERT_EQ(one.losses.size(), size_t{kSteps});
  for (const double norm : one.norms) EXPECT_GT(norm, job.train.gradient_clip_norm);
  for (const RunConfig& way : RunConfigs()) {
    SCOPED_TRACE(way.name);
    ExpectSame(Train(job, way), one);
  }
}

INSTANTIATE_TEST_SUITE_P(FamiliesAndPrecisions, DeterministicMesh,
                         ::testing::Values(std::pair("gpt2", "fp32"), std::pair("gpt2", "bf16"),
                                           std::pair("llama", "fp32"), std::pair("llama", "bf16")));

TEST(LogicalMicroBatch, OfAnySizeHasTheSameBitsOnAnyMesh) {
  for (const int64_t logical : {2, 4}) {
    const JobSpec job = Job("gpt2", "fp32", logical);
    const Bits one = Train(job, {});
    for (const RunConfig& way : {RunConfig{.name = "data 2", .data = 2},
                                 RunConfig{.name = "zero 2 of 2", .data = 2, .zero_stage = 2},
                                 RunConfig{.name = "1f1b of 2", .pipeline = 2}}) {
      SCOPED_TRACE(way.name + ", " + std::to_string(logical));
      ExpectSame(Train(job, way), one);
    }
  }
}

TEST(LogicalMicroBatch, WithoutItTheBitsDependOnTheMesh) {
  JobSpec job = Job("gpt2", "fp32", 1);
  const Bits mesh = Train(job, {});
  job.train.deterministic = "run";
  const Bits one = Train(job, {}), four = Train(job, {.data = 4});
  EXPECT_NE(one.state, four.state);
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(one.losses[step], mesh.losses[step], 1e-5);
    EXPECT_NEAR(one.norms[step], mesh.norms[step], 1e-4 * mesh.norms[step]);
  }
}

TEST(LogicalMicroBatch, ABitThatOneRankHasWrongShowsOnTheOthers) {
  const MeshCase c = CaseOf(Job("gpt2", "fp32", 1), {.data = 2});
  const std::map<std::string, std::vector<float>> sound = TrainOnMesh(c)[0].values;
  std::map<std::string, std::vector<float>> other;
  RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    ParameterSet& parameters = rank.run.model->parameters();
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(rank.trainer->Step().ok());
      if (step > 0 || world.rank() == 0) continue;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].name == "transformer.h.1.mlp.c_fc.weight") {
          reinterpret_cast<uint32_t*>(parameters.value(i).As<float>())[5] ^= 1;
        }
      }
    }
    for (int64_t i = 0; i < parameters.size() && world.rank() == 0; ++i) {
      other[parameters[i].name] = FetchValues(rank.run.context.stream, parameters.value(i));
    }
  });
  ASSERT_EQ(other.size(), sound.size());
  EXPECT_NE(other, sound) << "rank 1 sends other gradients from the third step on";
}

TEST(LogicalMicroBatch, ItsSumsTakeTheMemoryThatThePlannerPredicts) {
  JobSpec job = Job("llama", "fp32", 1);
  job.model.width = 128;
  const auto gradients = [&](const RunConfig& way) {
    const MeshCase c = CaseOf(job, way);
    const double measured =
        static_cast<double>(TrainOnMesh(c)[0].reports.back().peak_memory.gradients_bytes);
    const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {});
    const auto predicted = static_cast<double>(PredictMemory(inputs).gradients_bytes);
    EXPECT_NEAR(measured / predicted, 1, 0.05)
        << way.name << ": " << measured << ", predicted " << predicted;
    return measured;
  };
  const double none = gradients({.name = "data 8", .data = 8});
  EXPECT_NEAR(gradients({.name = "one rank"}) / none, 4, 0.01) << "1 + log2(8) sums";
  EXPECT_NEAR(gradients({.name = "data 2", .data = 2}) / none, 3, 0.01);
  (void)gradients({.name = "zero 2 of 2", .data = 2, .zero_stage = 2});
  (void)gradients({.name = "zero 3 of 2", .data = 2, .zero_stage = 3});
}

TEST(LogicalMicroBatch, ATableThatClassifiesIsOneLeafOnDataParallelRanks) {
  JobSpec job = Job("gpt2", "fp32", 1);
  job.model.untied_classifier = false;
  const Bits one = Train(job, {});
  for (const int64_t stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    ExpectSame(Train(job, {.data = 2, .zero_stage = stage}), one);
  }
}

}  // namespace
}  // namespace weft::engine
