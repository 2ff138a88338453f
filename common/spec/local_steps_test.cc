#include "common/spec/local_steps.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::HasSubstr;

JobSpec LocalJob() {
  JobSpec job;
  job.name = "local";
  job.data.train = {"text"};
  job.train.local_steps = 8;
  job.train.steps = 100;
  job.resources.ranks = 4;
  return job;
}

TEST(LocalSteps, RanksMeetEveryNStepsAndAtTheEnd) {
  TrainSpec train;
  train.local_steps = 8;
  train.steps = 20;
  EXPECT_EQ(LastOuterStep(train, 0), 0);
  EXPECT_EQ(LastOuterStep(train, 7), 0);
  EXPECT_EQ(LastOuterStep(train, 8), 8);
  EXPECT_EQ(LastOuterStep(train, 19), 16);
  EXPECT_EQ(LastOuterStep(train, 20), 20) << "the last round is shorter";
  train.local_steps = 1;
  for (int64_t step = 0; step <= 20; ++step) EXPECT_EQ(LastOuterStep(train, step), step);
}

TEST(LocalSteps, WhatIsDueHappensAtTheNextOuterStep) {
  TrainSpec train;
  train.steps = 100;
  const auto due = [&](int64_t local_steps, int64_t every) {
    train.local_steps = local_steps;
    std::string steps;
    for (int64_t step = local_steps; step < 40; step += local_steps) {
      if (IsDue(every, LastOuterStep(train, step - 1), step)) steps += std::to_string(step) + " ";
    }
    return steps;
  };
  EXPECT_EQ(due(1, 10), "10 20 30 ");
  EXPECT_EQ(due(8, 10), "16 24 32 ");
  EXPECT_EQ(due(8, 8), "8 16 24 32 ");
  EXPECT_EQ(due(8, 16), "16 32 ");
  EXPECT_EQ(due(8, 3), "8 16 24 32 ") << "once, however often it was due";
  EXPECT_EQ(due(8, 0), "");
}

TEST(LocalSteps, JobsThatCannotMakeThemAreRefused) {
  ASSERT_TRUE(ValidateJob(LocalJob()).ok()) << ValidateJob(LocalJob()).message();
  const auto refusal = [](const std::function<void(JobSpec&)>& change) {
    JobSpec job = LocalJob();
    change(job);
    const Status status = ValidateJob(job);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("hint: "));
    return status.message();
  };
  const auto asked = [](const std::string& with) {
    return ::testing::AllOf(HasSubstr("train.local_steps 8"), HasSubstr("does not go with"),
                            HasSubstr(with));
  };
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.zero_stage = 1; }),
              asked("resources.zero_stage"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.model.family = "llama";
                job.model.experts = 4;
                job.resources.expert_parallel = 2;
              }),
              asked("resources.expert_parallel"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.averaging.kind = "ema"; }),
              asked("train.averaging"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.gradient_noise_scale = true; }),
              asked("train.gradient_noise_scale"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.guard.spike_deviations = 6; }),
              asked("train.guard.spike_deviations"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.optimizer.name = "schedule_free_adamw";
                job.schedule.kind = "constant";
              }),
              asked("optimizer.name schedule_free_adamw"));
  EXPECT_THAT(
      refusal([](JobSpec& job) { job.model.over_parameterization.kind = "linear_expansion"; }),
      asked("model.over_parameterization"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.resources.offload_optimizer = "host";
                job.resources.delayed_update = true;
              }),
              asked("resources.delayed_update"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.outer_learning_rate = 0; }),
              HasSubstr("train.outer_learning_rate 0"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.outer_momentum = 1; }),
              HasSubstr("train.outer_momentum must be below 1"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.train.local_steps = 1;
                job.train.outer_momentum = 0.5;
              }),
              HasSubstr("train.local_steps above 1"));
}

TEST(LocalSteps, SubNetworksAreOfRanksThatMakeThemAndHaveUnits) {
  const auto job_of = [](int64_t ranks) {
    JobSpec job = LocalJob();
    job.train.local_sub_networks = true;
    job.model.family = "llama";
    job.model.heads = 8;
    job.model.kv_heads = 4;
    job.resources.ranks = ranks;
    job.train.global_batch = 8 * 3 * 5;
    return job;
  };
  for (const int64_t ranks : {0, 1, 3, 4}) {
    EXPECT_TRUE(ValidateJob(job_of(ranks)).ok()) << ValidateJob(job_of(ranks)).message();
  }
  EXPECT_THAT(ValidateJob(job_of(5)).message(),
              ::testing::AllOf(HasSubstr("4 heads of keys and values, and there are 5 ranks"),
                               HasSubstr("hint: resources.ranks 4 or fewer")));
  JobSpec narrow = job_of(4);
  narrow.model.mlp_width = 2;
  EXPECT_THAT(ValidateJob(narrow).message(), HasSubstr("2 neurons of an MLP"));
  JobSpec together = job_of(4);
  together.train.local_steps = 1;
  EXPECT_THAT(ValidateJob(together).message(),
              ::testing::AllOf(HasSubstr("train.local_sub_networks"),
                               HasSubstr("hint: train.local_steps 32")));
}

TEST(LocalSteps, RoundsByTimeAreThoseOfRanksThatEachEndTheirOwn) {
  const auto timed = [] {
    JobSpec job = LocalJob();
    job.train.local_steps = 1;
    job.train.local_round_seconds = 60;
    job.train.outer_momentum = 0.5;
    return job;
  };
  EXPECT_TRUE(MakesLocalSteps(timed().train));
  EXPECT_TRUE(TimesRounds(timed().train));
  EXPECT_FALSE(TimesRounds(LocalJob().train));
  ASSERT_TRUE(ValidateJob(timed()).ok()) << ValidateJob(timed()).message();
  const auto refusal = [&](const std::function<void(JobSpec&)>& change) {
    JobSpec job = timed();
    change(job);
    const Status status = ValidateJob(job);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(),
                ::testing::AllOf(HasSubstr("local_round_seconds"), HasSubstr("hint: ")));
    return status.message();
  };
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.local_steps = 8; }),
              HasSubstr("train.local_round_seconds 60 and train.local_steps 8 both say"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.local_round_seconds = 1e5; }),
              HasSubstr("longer than ranks wait"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.tensor_parallel = 2; }),
              HasSubstr("resources.tensor_parallel"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.pipeline_parallel = 2; }),
              HasSubstr("resources.pipeline_parallel"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.context_parallel = 2; }),
              HasSubstr("resources.context_parallel"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.train.batch_warmup_steps = 10;
                job.train.batch_warmup_start = 8;
              }),
              HasSubstr("train.batch_warmup_steps"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.precision = "bf16_pure"; }),
              HasSubstr("train.precision bf16_pure"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.zero_stage = 1; }),
              HasSubstr("resources.zero_stage 1"))
      << "as all local steps";
  EXPECT_THAT(refusal([](JobSpec& job) { job.checkpoint.peer_every_steps = 10; }),
              HasSubstr("checkpoint.peer_every_steps"));
}

TEST(LocalSteps, WorkersThatMakeThemMayBeOfSeveralRanks) {
  JobSpec job = LocalJob();
  job.resources.tensor_parallel = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.tensor_parallel = 1;
  job.resources.pipeline_parallel = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.context_parallel = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(LocalSteps, RanksThatMakeThemMayOffload) {
  JobSpec job = LocalJob();
  job.resources.offload_optimizer = "host";
  job.resources.offload_parameters = "host";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

}  // namespace
}  // namespace weft
