#include "common/spec/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phase_testing.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using phases::Error;
using phases::Phase;
using phases::Stack;
using phases::VCycle;
using ::testing::HasSubstr;

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
                      j.phases[1].layers = -1;
                      j.phases[1].width = 0;
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

TEST(Phases, RefuseWhatTheJobOfNoPhaseShows) {
  for (const JobSpec& job : {Stack(3), VCycle(), Masked()}) {
    EXPECT_THAT(Error(job,
                      [](JobSpec& j) {
                        j.model.untied_classifier = true;
                        j.train.value_learning.base.import_path = "/base";
                      }),
                HasSubstr("train.value_learning.base.import_path /base does not go with phases"));
    EXPECT_THAT(Error(job,
                      [](JobSpec& j) {
                        j.train.sparsity.method = "slope";
                        j.train.sparsity.adapter_rank = 4;
                      }),
                HasSubstr("train.sparsity.adapter_rank 4 does not go with phases"));
  }
}

TEST(Phases, OfImagesOfSeveralSizes) {
  JobSpec job = GoodJob();
  job.model.family = "vit";
  job.model.image_size = 32;
  job.model.patch_size = 8;
  job.data.train = {"train-images-idx3-ubyte"};
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "stack"), Phase(100)};
  job.phases[0].image_size = 16;
  job.phases[0].layers = 2;
  job.phases[1].image_size = 24;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(SequenceLength(JobOfPhase(job, 0)), 2 * 2 + 1);
  EXPECT_EQ(SequenceLength(JobOfPhase(job, 2)), 4 * 4 + 1);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].image_size = 20; }),
              HasSubstr("phases[0]: model.image_size 20"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].image_size = 24; }),
              HasSubstr("phases[2].image_size 24 is not model.image_size 32"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.phases[0].image_size = 16; }),
              HasSubstr("phases[0].image_size is for model.family vit"));
}

TEST(Phases, SampleLayersOfTheirOwnBlocks) {
  JobSpec job = Stack(2);
  job.train.sampled_layers = 6;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.sampled_layers, 6);
  job.phases[0].sampled_layers = 4;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.sampled_layers, 4);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].sampled_layers = 5; }),
              HasSubstr("phases[0]: train.sampled_layers 5 must be a multiple"));
}

TEST(Phases, ArePlannedWithoutPlacesThatTheyRefuse) {
  JobSpec job = Stack(3);
  ResourceSpec& asked = job.resources;
  asked.offload_optimizer = asked.offload_activations = "auto";
  asked.offload_directory = "/disk";
  asked.host_link_bytes_per_second = 1'000'000;
  for (const size_t phase : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(ToJson(PlannedJobOfPhase(job, phase)), ToJson(JobOfPhase(job, phase)));
  }
  job.phases[0].search = {.steps = 40, .layers = {1, 2, 3}, .image_sizes = {}};
  const JobSpec search = PlannedJobOfPhase(job, 0);
  EXPECT_TRUE(ValidateJob(search).ok()) << ValidateJob(search).message();
  EXPECT_EQ(search.resources.offload_optimizer, "none");
  EXPECT_EQ(search.resources.offload_activations, "none");
  EXPECT_EQ(search.resources.offload_directory, "");
  EXPECT_EQ(search.resources.host_link_bytes_per_second, 0);
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

TEST(Phases, GoOnWithOneScheduleWhereTheySaySo) {
  JobSpec job = VCycle();
  job.schedule = {.kind = "warmup_stable_decay", .warmup_steps = 150, .decay_steps = 250};
  for (PhaseSpec& phase : job.phases) phase.schedule = "continued";
  job.phases[1].learning_rate = 4 * job.optimizer.learning_rate;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const int64_t before[] = {0, 100, 400}, after[] = {500, 200, 0};
  for (size_t i = 0; i < 3; ++i) {
    // As the order of an attempt has it, too.
    for (const JobSpec& own : {JobOfPhase(job, i), JobOfPhase(JobThrough(job, i), i)}) {
      EXPECT_EQ(own.schedule.kind, "warmup_stable_decay");
      EXPECT_EQ(own.schedule.steps_before, before[i]);
      EXPECT_EQ(own.schedule.steps_after, after[i]);
      EXPECT_EQ(own.schedule.warmup_steps, 150) << "longer than the first phase";
      EXPECT_EQ(own.schedule.decay_steps, 250) << "longer than the last phase";
      EXPECT_EQ(own.optimizer.learning_rate, job.optimizer.learning_rate * (i == 1 ? 4 : 1));
    }
  }
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.schedule.warmup_steps = 601; }),
              HasSubstr("schedule.warmup_steps 601 is more than the 600 steps of the schedule"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.schedule.decay_steps = 451; }),
              HasSubstr("schedule.decay_steps 451 is more than the 600 steps of the schedule "
                        "less schedule.warmup_steps 150"));
  // Others have one of their own, which ends with them.
  job.schedule = {.kind = "linear", .warmup_steps = 10};
  job.phases[1].schedule = "cosine";
  job.phases[0].schedule = "";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  for (const size_t own : {0, 1}) {
    EXPECT_EQ(JobOfPhase(job, own).schedule.steps_before, 0);
    EXPECT_EQ(JobOfPhase(job, own).schedule.steps_after, 0);
  }
  EXPECT_EQ(JobOfPhase(job, 1).schedule.kind, "cosine");
  EXPECT_EQ(JobOfPhase(job, 2).schedule.kind, "linear");
  EXPECT_EQ(JobOfPhase(job, 2).schedule.steps_before, 400);
}

TEST(Phases, OfOneScheduleHaveNoWarmUpOfTheirOwn) {
  JobSpec job = Stack(3);
  job.phases[1].schedule = "continued";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(
      Error(job, [](JobSpec& j) { j.phases[1].warmup_steps = 0; }),
      HasSubstr("phases[1].warmup_steps 0 is for a schedule of the phase's own, and "
                "phases[1].schedule continued is its part of that of the job; hint: leave it out"));
  for (const auto field : {&ScheduleSpec::steps_before, &ScheduleSpec::steps_after}) {
    EXPECT_THAT(Error(job, [&](JobSpec& j) { j.schedule.*field = 1; }),
                HasSubstr("schedule.steps_before and schedule.steps_after are for a job without "
                          "phases"));
  }
}

TEST(Phases, OfOneScheduleGetItsDefaultWarmup) {
  JobSpec job = VCycle();
  job.schedule.warmup_steps = 100;
  job.phases[0].steps = 20;
  for (PhaseSpec& phase : job.phases) phase.schedule = "continued";
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 52) << "a tenth of all 520 steps";
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
