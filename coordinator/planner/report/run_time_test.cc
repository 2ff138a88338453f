#include "coordinator/planner/report/run_time.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/growth_fit.h"
#include "common/spec/phases.h"
#include "coordinator/planner/report/explanation.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

constexpr double kParameters = 124'439'808;
/// Of 6 layers of width 384: tables, blocks, the last norm.
constexpr double kSmallParameters =
    (50257 + 1024) * 384 + 6 * (12 * 384 * 384 + 13 * 384) + 2 * 384;

ClusterProfile OneMachine() {
  ClusterProfile cluster{{CpuMachine("a", 4, 16 * kGiB)}};  // 20 GB/s
  cluster.workers[0].disk_write_bytes_per_second = 1e9;
  return cluster;
}

/// Two data-parallel ranks on one machine, with half a second for a step.
Plan TwoRanks() {
  Plan plan;
  plan.mesh.data = 2;
  plan.micro_batch = 4;
  plan.accumulation_steps = 2;
  plan.threads_per_rank = 2;
  plan.rank_workers = {"a", "a"};
  plan.prediction.step_seconds = 0.5;
  plan.prediction.memory_per_rank.parameters_bytes = 500'000'000;
  plan.prediction.memory_per_rank.optimizer_bytes = 1'500'000'000;
  return plan;
}

/// Forward passes of these seconds on the ranks of a pipeline, backward passes of twice as many.
Timeline Passes(const std::vector<double>& forward) {
  Timeline timeline;
  for (size_t stage = 0; stage < forward.size(); ++stage) {
    TimelineRank& rank = timeline.ranks.emplace_back();
    for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const double start = 3 * forward[stage] * static_cast<double>(micro_batch);
      const auto own = static_cast<int64_t>(stage);
      rank.steps.push_back({"F", own, micro_batch, start, start + forward[stage]});
      rank.steps.push_back(
          {"B", own, micro_batch, start + forward[stage], start + 3 * forward[stage]});
    }
  }
  return timeline;
}

TEST(RunTime, IsAllThatARunSpends) {
  const RunTime time = RunTimeOf(SmallGpt2(), 0, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_DOUBLE_EQ(time.start_seconds, 1);
  EXPECT_DOUBLE_EQ(time.weights_seconds, kParameters * 10e-9 / 2) << "by two threads";
  EXPECT_DOUBLE_EQ(time.warm_up_seconds, 0.5);
  EXPECT_DOUBLE_EQ(time.steps_seconds, 1000 * 0.5);
  EXPECT_EQ(time.validations, 10) << "after 100, 200, ..., 900 steps, and at the end";
  // 64 sequences, 32 a rank, 4 a pass.
  EXPECT_DOUBLE_EQ(time.validation_seconds, 10 * 8 * 0.03);
  EXPECT_EQ(time.checkpoints, 10);
  // One of the two ranks saves: it copies 2 GB, which takes 4 GB of 20, and writes the last one
  // while nothing else is done.
  EXPECT_DOUBLE_EQ(time.checkpoint_seconds, 10 * 0.2 + 2);
  EXPECT_EQ(time.growth_fit_seconds, 0);
  EXPECT_DOUBLE_EQ(TotalSeconds(time), 1 + 0.62219904 + 0.5 + 500 + 2.4 + 4);
  EXPECT_EQ(RunTimeText(time).substr(0, RunTimeText(time).find(':')), "8m29s");
  EXPECT_THAT(RunTimeText(time),
              ::testing::AllOf(::testing::HasSubstr(", 10 validations 2.4s, 10 checkpoints 4.0s"),
                               ::testing::Not(::testing::HasSubstr("growth"))));
}

TEST(RunTime, OfGpusStartsLater) {
  Plan plan = TwoRanks();
  plan.device = "cuda";
  EXPECT_DOUBLE_EQ(RunTimeOf(SmallGpt2(), 0, OneMachine(), plan, Passes({0.03})).start_seconds, 10);
}

// Micro-batches follow each other through the stages.
TEST(RunTime, ValidatesThroughAPipeline) {
  JobSpec job = SmallGpt2();
  job.train.eval_every_steps = 0;
  Plan plan = TwoRanks();
  plan.mesh = {};
  plan.mesh.pipeline = 2;
  const RunTime time = RunTimeOf(job, 0, OneMachine(), plan, Passes({0.02, 0.03}));
  EXPECT_EQ(time.validations, 1);
  EXPECT_DOUBLE_EQ(time.validation_seconds, 0.02 + 16 * 0.03);
  job.train.eval_sequences = 3;  // less than a micro-batch
  EXPECT_DOUBLE_EQ(RunTimeOf(job, 0, OneMachine(), plan, Passes({0.02, 0.03})).validation_seconds,
                   0.75 * 0.05);
}

TEST(RunTime, ValidatesOnlyWhereThereIsSomethingToValidateOn) {
  JobSpec job = SmallGpt2();
  job.data.validation_fraction = 0;
  EXPECT_EQ(RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03})).validations, 0);
  job.data.validation = {"b.txt"};
  EXPECT_EQ(RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03})).validations, 10);
  job.train.eval_sequences = 0;
  const RunTime time = RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_EQ(time.validations, 10);
  EXPECT_EQ(time.validation_seconds, 0) << "nobody knows how many sequences there are";
}

// Rounds of 4 steps: what is due every 10 steps comes after 12, 20 and 32 of 40, and at the end.
TEST(RunTime, WhatIsDueComesWhenRanksComeTogether) {
  JobSpec job = SmallGpt2();
  job.train.steps = 40;
  job.train.local_steps = 4;
  job.train.eval_every_steps = 10;
  job.checkpoint.every_steps = 3;
  const RunTime time = RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_EQ(time.validations, 3 + 1);
  EXPECT_EQ(time.checkpoints, 9 + 1) << "after each round";
}

TEST(RunTime, OfAPhaseHasTheGrowthOfItsWeights) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.phases.resize(3);
  for (PhaseSpec& phase : job.phases) phase.steps = 100;
  job.phases[1].layers = 6;
  job.phases[1].width = 384;
  job.phases[1].growth.method = "coalesce";
  job.phases[2].growth.method = "fpi";
  const RunTime first = RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03}));
  const RunTime small = RunTimeOf(job, 1, OneMachine(), TwoRanks(), Passes({0.03}));
  const RunTime last = RunTimeOf(job, 2, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_EQ(first.validations, 1);
  EXPECT_EQ(small.validations, 2) << "of what it begins with, too";
  EXPECT_DOUBLE_EQ(small.steps_seconds, 50);
  // Each rank reads 3 numbers of 4 bytes, at a half of 20 GB/s for reading and writing.
  EXPECT_DOUBLE_EQ(
      small.weights_seconds,
      kSmallParameters * 10e-9 / 2 + 2 * 3 * 4 * kParameters / 10e9 + kSmallParameters * 20e-9);
  EXPECT_DOUBLE_EQ(
      last.weights_seconds,
      kParameters * 10e-9 / 2 + 2 * 3 * 4 * kSmallParameters / 10e9 + 3 * kParameters * 20e-9)
      << "the optimizer's state grows, too";
  EXPECT_EQ(last.growth_fit_seconds, 0);
  job.phases[2].growth.method = "decoalesce";
  job.phases[2].growth.alpha = 1;
  const RunTime copied = RunTimeOf(job, 2, OneMachine(), TwoRanks(), Passes({0.03}));
  job.phases[2].growth.alpha = 0.5;
  const RunTime mixed = RunTimeOf(job, 2, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_NEAR(mixed.weights_seconds - copied.weights_seconds, 2 * 3 * 4 * kParameters / 10e9, 1e-9)
      << "the first phase is read, too";
  job.phases[2].growth.method = "ligo";
  const RunTime learned = RunTimeOf(job, 2, OneMachine(), TwoRanks(), Passes({0.03}));
  EXPECT_DOUBLE_EQ(learned.growth_fit_seconds,
                   0.5 * GrowthFitFlops(job, 2) / StepFlops(JobOfPhase(job, 2)));
  Plan shared = TwoRanks();
  shared.mesh = {.tensor = 2};
  const RunTime alike = RunTimeOf(job, 2, OneMachine(), shared, Passes({0.03}));
  EXPECT_DOUBLE_EQ(alike.growth_fit_seconds, 2 * learned.growth_fit_seconds)
      << "each has the whole model";
}

// A third of each step of the search is each of its choices, which are compared on 16 batches.
TEST(RunTime, OfASearchHasItsComparison) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 100;
  job.phases[0].layers = 6;
  job.phases[1].growth.method = "stack";
  const RunTime plain = RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03}));
  job.phases[0].search = {.steps = 40, .layers = {2, 4, 6}, .image_sizes = {}};
  const RunTime time = RunTimeOf(job, 0, OneMachine(), TwoRanks(), Passes({0.03}));
  double choices = 0;  // in networks of 6 layers
  for (const int64_t layers : {2, 4, 6}) {
    JobSpec part = JobOfPhase(job, 0);
    part.model.layers = layers;
    choices += StepFlops(part) / StepFlops(JobOfPhase(job, 0));
  }
  EXPECT_NEAR(time.steps_seconds, 0.5 * (40 * choices / 3 + 60), 1e-9);
  EXPECT_EQ(plain.validations, 1);
  EXPECT_EQ(time.validations, 1 + 1 + 3);
  EXPECT_NEAR(time.validation_seconds, 2 * 8 * 0.03 + choices * (16 * 16 / 8) * 0.03, 1e-9);
  EXPECT_EQ(time.checkpoints, plain.checkpoints + 1);
  EXPECT_DOUBLE_EQ(time.checkpoint_seconds, plain.checkpoint_seconds + 0.2 + 2);
}

TEST(RunTime, OfSeveralPhasesIsTheSumOfEachPart) {
  RunTime time;
  time.start_seconds = 1, time.weights_seconds = 2, time.growth_fit_seconds = 3;
  time.warm_up_seconds = 4, time.steps_seconds = 5, time.validations = 6;
  time.validation_seconds = 7, time.checkpoints = 8, time.checkpoint_seconds = 9;
  RunTime sum = time;
  AddTo(sum, time);
  EXPECT_DOUBLE_EQ(TotalSeconds(time), 1 + 2 + 3 + 4 + 5 + 7 + 9);
  EXPECT_DOUBLE_EQ(TotalSeconds(sum), 2 * TotalSeconds(time));
  EXPECT_EQ(sum.validations, 12);
  EXPECT_EQ(sum.checkpoints, 16);
}

}  // namespace
}  // namespace weft::planner
