// Updates of rows and columns that growth has added, against those of the plain optimizer.
#include "worker/engine/techniques/rewarming/rewarming_cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/spec/phases.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

/// From 24 to 32 columns, three to four heads and 24 to 80 neurons, in two blocks.
JobSpec Plain(const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4);
  job.model.family = family == "mixtral" ? "llama" : family;
  job.model.heads = 4;
  job.model.mlp_width = 80;
  if (family == "mixtral") {
    job.model.experts = 4;
    job.model.router_aux_loss = 0;  // of a micro-batch, whose sizes differ on meshes
  }
  return job;
}

JobSpec Rewarmed(JobSpec job, int64_t steps, double peak) {
  PhaseGrowth growth{job.model, {}};
  growth.before.width = 24;
  growth.before.heads = 3;
  growth.before.mlp_width = 24;
  growth.growth.method = "sparkling";
  growth.growth.rewarm_steps = steps;
  growth.growth.rewarm_peak = peak;
  SetPhaseGrowth(growth, job);
  return job;
}

/// Whether growth has added this position of a side. Sides of other extents have not grown.
bool IsAdded(int64_t extent, int64_t position) {
  switch (extent) {
    case 32:
    case 96:  // queries, keys and values
      return position % 32 >= 24;
    case 80:
      return position >= 24;
    default:
      return false;
  }
}

void CopyState(const TinyTraining& from, TinyTraining& to) {
  const auto source = from.trainer->StateTensors(), target = to.trainer->StateTensors();
  ASSERT_EQ(source.size(), target.size());
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].name, target[i].name);
    std::memcpy(target[i].view.data, source[i].view.data, source[i].view.Bytes());
  }
  ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
}

/// Compares weights `after` a step from `before` with those after a `plain` one.
void ExpectScaled(const ParameterSet& parameters, const std::vector<std::vector<float>>& before,
                  const std::vector<std::vector<float>>& plain,
                  const std::vector<std::vector<float>>& after, double factor) {
  int64_t moved = 0;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const Shape& shape = parameters[p].shape;
    const int64_t columns = shape.Elements() / shape[0];
    const auto i = static_cast<size_t>(p);
    for (int64_t e = 0; e < shape.Elements(); ++e) {
      const auto k = static_cast<size_t>(e);
      const double was = before[i][k], would_be = plain[i][k], is = after[i][k];
      const bool column_added = shape.rank > 1 && IsAdded(columns, e % columns);
      if (!IsAdded(shape[0], e / columns) && !column_added) {
        ASSERT_EQ(is, would_be) << parameters[p].name << ", number " << e << " was there";
        continue;
      }
      const double expected = was + factor * (would_be - was);
      ASSERT_NEAR(is, expected, 3e-7 * (std::abs(was) + std::abs(would_be)) + 1e-12)
          << parameters[p].name << ", number " << e << " was added";
      moved += is != would_be ? 1 : 0;
    }
  }
  EXPECT_EQ(moved > 1000, factor != 1);
}

TEST(Rewarming, AStepIsTheOptimizersTimesTheFactorWhereGrowthHasAddedAlone) {
  for (const char* family : {"gpt2", "llama", "mixtral"}) {
    for (const char* optimizer : {"adamw", "muon", "sgd"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(family) + ", " + optimizer + ", " + precision);
        JobSpec job = Plain(family);
        job.optimizer.name = optimizer;
        job.optimizer.learning_rate = optimizer == std::string("sgd") ? 0.5 : 0.01;
        job.optimizer.weight_decay = 0.1;
        RandomTokens tokens(job.model.vocab_size, job.model.context);
        TinyTraining plain(job, TinyPlan(precision), tokens);
        TinyTraining rewarmed(Rewarmed(job, 2, 1.5), TinyPlan(precision), tokens);
        for (const double factor : {0.75, 1.5, 1.25, 1.0, 1.0}) {
          CopyState(rewarmed, plain);
          const auto before = ValuesOf(rewarmed.model->parameters());
          rewarmed.Step();
          plain.Step();
          ExpectScaled(rewarmed.model->parameters(), before, ValuesOf(plain.model->parameters()),
                       ValuesOf(rewarmed.model->parameters()), factor);
        }
        // The optimizer itself is as without.
        const auto state = rewarmed.trainer->StateTensors(), truth = plain.trainer->StateTensors();
        ASSERT_EQ(state.size(), truth.size());
        for (size_t i = 0; i < state.size(); ++i) {
          EXPECT_EQ(ValuesOf(state[i].view), ValuesOf(truth[i].view)) << state[i].name;
        }
      }
    }
  }
}

TEST(Rewarming, ASkippedStepLeavesAllWeightsAsTheyAre) {
  const JobSpec job = Rewarmed(Plain(), 4, 1.3);
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  run.Step();
  const std::vector<float> before = run.Parameters();
  ASSERT_TRUE(SetFailpoints("trainer.loss=error").ok());
  const StepReport report = run.Step();
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(run.Parameters(), before);
}

TEST(Rewarming, ARestoredStateGoesOnBitForBit) {
  for (const int64_t made : {1, 3}) {  // as the factor rises, and as it falls
    SCOPED_TRACE(made);
    const JobSpec job = Rewarmed(Plain(), 3, 2);
    RandomTokens tokens(job.model.vocab_size, job.model.context);
    TinyTraining original(job, TinyPlan("bf16"), tokens);
    for (int64_t i = 0; i < made; ++i) original.Step();
    TinyTraining copy(job, TinyPlan("bf16"), tokens);
    CopyState(original, copy);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(copy.Step().loss, original.Step().loss);
    EXPECT_EQ(copy.Parameters(), original.Parameters());
  }
}

TEST(Rewarming, CopiesOfWeightsAreThereWhileUpdatesDiffer) {
  const JobSpec plain = Plain();
  RandomTokens tokens(plain.model.vocab_size, plain.model.context);
  TinyTraining with(Rewarmed(plain, 2, 1.3), TinyPlan("fp32"), tokens);
  TinyTraining without(plain, TinyPlan("fp32"), tokens);
  for (const bool differ : {true, true, true, false, false}) {
    with.allocator.ResetPeaks();
    without.allocator.ResetPeaks();
    with.Step();
    without.Step();
    const int64_t more =
        with.allocator.Peaks().optimizer_bytes - without.allocator.Peaks().optimizer_bytes;
    EXPECT_EQ(more > 0, differ) << more;
  }
}

TEST(Rewarming, RanksFollowOneRank) {
  struct Mesh {
    const char* name;
    const char* family;
    void (*change)(Plan& plan);
  };
  const Mesh meshes[] = {
      {"data 2", "gpt2", [](Plan& p) { p.mesh.data = 2, p.accumulation_steps = 1; }},
      {"zero 1", "gpt2",
       [](Plan& p) { p.mesh.data = 2, p.zero_stage = 1, p.accumulation_steps = 1; }},
      {"zero 2 of 4", "llama",
       [](Plan& p) {
         p.mesh.data = 4, p.zero_stage = 2;
         p.micro_batch = p.accumulation_steps = 1;
       }},
      {"zero 3", "llama",
       [](Plan& p) { p.mesh.data = 2, p.zero_stage = 3, p.accumulation_steps = 1; }},
      {"tensor 2", "gpt2", [](Plan& p) { p.mesh.tensor = 2; }},
      {"tensor 4 with sequence parallelism", "llama",
       [](Plan& p) { p.mesh.tensor = 4, p.sequence_parallel = true; }},
      {"pipeline 2", "gpt2",
       [](Plan& p) {
         p.mesh.pipeline = 2;
         p.stage_blocks = {1, 1};
       }},
      {"expert 2", "mixtral", [](Plan& p) { p.mesh.expert = 2, p.accumulation_steps = 1; }},
      {"tensor 2 x pipeline 2 x data 2 with ZeRO", "llama",
       [](Plan& p) {
         p.mesh.tensor = p.mesh.pipeline = p.mesh.data = 2;
         p.zero_stage = 1;
         p.stage_blocks = {1, 1};
         p.micro_batch = 1;
       }},
  };
  std::map<std::string, double> plain;
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(mesh.name);
    MeshCase c{Rewarmed(Plain(mesh.family), 2, 3), TinyPlan("fp32", 2, 2)};
    c.job.train.steps = 6;
    c.job.optimizer.learning_rate = 1e-3;
    mesh.change(c.plan);
    const MeshOutcome whole = TrainOnMesh(c.Whole())[0];
    ExpectFollows(TrainOnMesh(c), whole, 1e-5, 1e-4);
    if (plain.contains(mesh.family)) continue;
    MeshCase other = c.Whole();
    other.job.phases.clear();
    plain[mesh.family] = TrainOnMesh(other)[0].evaluation;
    EXPECT_GT(std::abs(plain[mesh.family] - whole.evaluation), 1e-4) << "the factor is seen";
  }
}

TEST(Rewarming, WhatWasThereIsAsLargeAsTheSmallerNetwork) {
  for (const char* family : {"gpt2", "llama", "mixtral", "bert", "vit"}) {
    SCOPED_TRACE(family);
    ModelSpec now = Plain(family).model;
    if (now.family == "vit") {
      now.image_size = 12;
      now.patch_size = 3;
      now.image_channels = 1;
      now.classes = 3;
      now.vocab_size = 0;
    }
    const ModelSpec before =
        WithSizesOf(RewarmedGrowthOf(Rewarmed(Plain(family), 1, 1))->before, now);
    const auto added = AddedPositionsOf(before, now);
    std::map<std::string, int64_t> old;
    for (const ParameterInfo& parameter : ParametersOf(before)) {
      old[parameter.name] = parameter.Elements();
    }
    for (const ParameterInfo& parameter : ParametersOf(now)) {
      int64_t kept = parameter.Elements();
      if (const auto found = added.find(parameter.name); found != added.end()) {
        const auto& [rows, columns] = found->second;
        EXPECT_EQ(std::ssize(rows) * std::ssize(columns), parameter.Elements()) << parameter.name;
        kept = std::count(rows.begin(), rows.end(), false) *
               std::count(columns.begin(), columns.end(), false);
        EXPECT_LT(kept, parameter.Elements()) << parameter.name;
      }
      EXPECT_EQ(kept, old.at(parameter.name)) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace weft::engine
