#include "common/spec/phases.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

PhaseSpec Phase(int64_t steps, const std::string& method = "none") {
  PhaseSpec phase;
  phase.steps = steps;
  phase.growth.method = method;
  return phase;
}

/// Large, half in all sizes, and large again.
JobSpec VCycle() {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(300, "coalesce"), Phase(200, "decoalesce")};
  job.phases[1].layers = 3;
  job.phases[1].width = 192;
  return job;
}

/// Few blocks, then all.
JobSpec Stack(int64_t layers) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "stack")};
  job.phases[0].layers = layers;
  return job;
}

std::string Error(JobSpec job, const std::function<void(JobSpec&)>& change) {
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(Phases, AJobWithoutPhasesIsItsOnlyOne) {
  const JobSpec job = GoodJob();
  EXPECT_EQ(PhaseCount(job), 1u);
  EXPECT_EQ(JobOfPhase(job, 0).model.width, job.model.width);
}

TEST(Phases, HaveTheSizesTheyNameAndKeepProportions) {
  JobSpec job = VCycle();
  job.phases[1].learning_rate = 2e-3;
  job.phases[1].warmup_steps = 0;
  job.phases[1].schedule = "constant";
  job.phases[1].global_batch = 64;
  job.phases[1].sequence_length = 128;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const JobSpec small = JobOfPhase(job, 1);
  EXPECT_TRUE(small.phases.empty());
  EXPECT_EQ(small.model.layers, 3);
  EXPECT_EQ(small.model.heads, 3);
  EXPECT_EQ(HeadWidth(small.model), HeadWidth(job.model));
  EXPECT_EQ(MlpWidth(small.model), MlpWidth(job.model) / 2);
  EXPECT_EQ(small.train.steps, 300);
  EXPECT_EQ(small.train.global_batch, 64);
  EXPECT_EQ(small.train.sequence_length, 128);
  EXPECT_EQ(small.optimizer.learning_rate, 2e-3);
  EXPECT_EQ(small.schedule.warmup_steps, 0);
  EXPECT_EQ(small.schedule.kind, "constant");
  const JobSpec last = JobOfPhase(job, 2);
  EXPECT_EQ(last.model.layers, job.model.layers);
  EXPECT_EQ(last.optimizer.learning_rate, job.optimizer.learning_rate);
  EXPECT_EQ(last.schedule.warmup_steps, 10);
  EXPECT_EQ(MixedPhase(job, 2), 0u);
  EXPECT_EQ(MixedPhase(job, 1), std::nullopt);
  EXPECT_EQ(PhaseTitle(job, 1), "phase 2 of 3");
}

TEST(Phases, TakeTheShareOfKeyAndValueHeads) {
  JobSpec job = VCycle();
  job.model.family = "llama";
  job.model.kv_heads = 2;
  job.model.heads = 4;
  job.model.mlp_width = 512;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 1).model.kv_heads, 1);
  EXPECT_EQ(JobOfPhase(job, 1).model.mlp_width, 256);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.model.kv_heads = 1; }),
              HasSubstr("phases[1].kv_heads must be given"));
  // All queries share one head of keys and values before and after.
  job.model.kv_heads = 1;
  job.phases[1].kv_heads = 1;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.model.kv_heads = 2;
                      j.phases[1].kv_heads = 2;
                    }),
              HasSubstr("phases[1].kv_heads does not suit growth"));
}

TEST(Phases, ErrorsNameThePhaseAndTheField) {
  const JobSpec job = VCycle();
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].width = 200; }),
              HasSubstr("phases[1].width 200 has no whole number of the heads"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].layers = 4; }),
              HasSubstr("phases[1].layers 4 after 6: growth.method coalesce divides all sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].width = 192; }),
              HasSubstr("phases[2].width 192 is not model.width 384"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].steps = 5; }),
              HasSubstr("phases[1]: schedule.warmup_steps 10 is more than train.steps 5"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.method = "none"; }),
              HasSubstr("phases[1].layers 3 after 6: growth.method none keeps all sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].growth.method = "stack"; }),
              HasSubstr("no phase before the first one"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.phases[1].layers = j.phases[1].width = 0;
                      j.phases[2].growth.method = "none";
                    }),
              HasSubstr("phases[1].growth.method coalesce changes no size"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].heads = 6; }),
              HasSubstr("phases[1].heads 6 makes heads of 32 columns from 64"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases.erase(j.phases.begin()); }),
              HasSubstr("phases[0].growth.method coalesce"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.phases.erase(j.phases.begin());
                      j.phases[0].growth.method = "none";
                    }),
              HasSubstr("phases[1].growth.method decoalesce: no phase before it had these sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].growth.method = "stack"; }),
              HasSubstr("phases[2].width 384 after 192: growth.method stack adds blocks"));
}

TEST(Phases, OfOneModelNeedNoGrowth) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(100)};
  job.phases[0].sequence_length = 64;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(Phases, StackFromAnyNumberOfBlocks) {
  for (const int64_t layers : {1, 2, 4}) {
    EXPECT_TRUE(ValidateJob(Stack(layers)).ok()) << ValidateJob(Stack(layers)).message();
  }
  EXPECT_THAT(Error(Stack(6), [](JobSpec&) {}), HasSubstr("changes no size"));
  EXPECT_THAT(Error(Stack(3),
                    [](JobSpec& j) {
                      j.model.family = "bert";
                      j.phases[1].growth.new_blocks = "identity";
                    }),
              HasSubstr("phases[1].growth.new_blocks identity does not go with norms after"));
}

TEST(Phases, RefuseWhatGrowthDoesNotKnow) {
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.model.import_path = "/a"; }),
              HasSubstr("phases do not go with model.import_path"));
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.model.initialization.method = "mup"; }),
              HasSubstr("phases[1].width does not go with model.initialization.method mup"));
  EXPECT_TRUE([] {
    JobSpec job = Stack(2);
    job.model.initialization.method = "mup";
    return ValidateJob(job).ok();
  }());
  EXPECT_THAT(Error(VCycle(),
                    [](JobSpec& j) {
                      j.optimizer.name = "adafactor";
                      j.phases[2].growth.optimizer_state = "kept";
                    }),
              HasSubstr("phases[2].growth.optimizer_state kept does not go with optimizer.name"));
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.model.norm_position = "post"; }),
              HasSubstr("model.untied_classifier"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.model.distinct_blocks = 3; }),
              HasSubstr("phases[1].layers does not go with model.distinct_blocks"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.model.structured_matrices.kind = "monarch"; }),
              HasSubstr("tensors in place of weights"));
  EXPECT_THAT(
      Error(Stack(3), [](JobSpec& j) { j.model.over_parameterization.kind = "linear_expansion"; }),
      HasSubstr("tensors in place of weights"));
}

TEST(Phases, AWarmUpOfTheBatchIsOfTheFirstOne) {
  JobSpec job = Stack(3);
  job.train.batch_warmup_start = 8;
  job.train.batch_warmup_steps = 10;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.batch_warmup_steps, 10);
  EXPECT_EQ(JobOfPhase(job, 1).train.batch_warmup_steps, 0);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.train.batch_warmup_steps = 101; }),
              HasSubstr("phases[0]: train.batch_warmup_steps"));
}

TEST(Phases, TheDefaultWarmupFitsTheShortestPhaseWithoutItsOwn) {
  JobSpec job = VCycle();
  job.schedule.warmup_steps = 100;
  job.phases[0].steps = 20;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 2);
  job.schedule.warmup_steps = 100;
  job.phases[0].warmup_steps = 20;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 20);
}

TEST(Phases, AnOrderSaysByItsStepsWhichPhaseIsToRun) {
  const JobSpec job = VCycle();
  const int64_t ends[] = {100, 400, 600};
  for (size_t phase = 0; phase < 3; ++phase) {
    const JobSpec order = JobThrough(job, phase);
    EXPECT_EQ(order.train.steps, ends[phase]);
    EXPECT_EQ(order.phases, job.phases);
    EXPECT_EQ(*PhaseToRun(order), phase);
  }
  EXPECT_EQ(StepsBefore(job, 0), 0);
  EXPECT_EQ(StepsBefore(job, 3), 600);
  JobSpec broken = job;
  broken.train.steps = 101;
  EXPECT_THAT(PhaseToRun(broken).status().message(), HasSubstr("no phase of job"));
  const JobSpec plain = GoodJob();
  EXPECT_EQ(JobThrough(plain, 0).train.steps, plain.train.steps);
  EXPECT_EQ(*PhaseToRun(plain), 0u);
}

TEST(Phases, TheLastOneHasTheRunFolder) {
  EXPECT_EQ(PhaseFolder(VCycle(), 0, "/runs/a"), "/runs/a/phase-1");
  EXPECT_EQ(PhaseFolder(VCycle(), 1, "/runs/a"), "/runs/a/phase-2");
  EXPECT_EQ(PhaseFolder(VCycle(), 2, "/runs/a"), "/runs/a");
  EXPECT_EQ(PhaseFolder(GoodJob(), 0, "/runs/a"), "/runs/a");
  EXPECT_TRUE(IsPhaseFolder("phase-12"));
  for (const char* name : {"phase-", "phase-1a", "phase", "my-phase-1"}) {
    EXPECT_FALSE(IsPhaseFolder(name)) << name;
  }
}

TEST(Phases, StepsOfSmallModelsCostLess) {
  const JobSpec job = VCycle();
  const double large = StepFlops(JobOfPhase(job, 0)), small = StepFlops(JobOfPhase(job, 1));
  EXPECT_GT(large, 2 * small);
  EXPECT_GT(small, 0);
  JobSpec longer = job;
  longer.train.global_batch *= 3;
  EXPECT_DOUBLE_EQ(StepFlops(JobOfPhase(longer, 1)), 3 * small);
}

}  // namespace
}  // namespace weft
