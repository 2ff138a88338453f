#include "coordinator/planner/report/propose_phases.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(ProposePhases, AVCycleTakesTheFlopsOfTheJobAndNoMore) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  const auto phases = ProposeVCycle(job);
  ASSERT_TRUE(phases.ok()) << phases.status().message();
  ASSERT_EQ(phases->size(), 3u);
  JobSpec cycle = job;
  cycle.phases = *phases;
  EXPECT_TRUE(ValidateJob(cycle).ok()) << ValidateJob(cycle).message();
  double flops = 0;
  for (size_t i = 0; i < 3; ++i) {
    const JobSpec phase = JobOfPhase(cycle, i);
    flops += static_cast<double>(phase.train.steps) * StepFlops(phase);
  }
  const double step = StepFlops(job), budget = static_cast<double>(job.train.steps) * step;
  EXPECT_LE(flops, budget);
  EXPECT_GT(flops, budget - step);
  // Ten steps of the small model, and of the last phase, for one of the first.
  EXPECT_NEAR(static_cast<double>((*phases)[1].steps), 10 * (*phases)[0].steps, 6);
  EXPECT_NEAR(static_cast<double>((*phases)[2].steps), 10 * (*phases)[0].steps, 8);
  EXPECT_EQ(JobOfPhase(cycle, 1).model.width, 384);
  EXPECT_EQ(JobOfPhase(cycle, 1).model.heads, 6);
  EXPECT_EQ(JobOfPhase(cycle, 1).model.layers, 6);
  EXPECT_DOUBLE_EQ((*phases)[1].learning_rate, 4 * job.optimizer.learning_rate);
}

TEST(ProposePhases, ItsLinesAreThePhases) {
  JobSpec job = SmallGpt2();
  job.optimizer.learning_rate = 3e-4;
  const auto phases = ProposeVCycle(job);
  ASSERT_TRUE(phases.ok()) << phases.status().message();
  const Result<Document> lines = ParseYaml(PhaseLines(*phases), "lines");
  ASSERT_TRUE(lines.ok()) << PhaseLines(*phases);
  Json json = ToJson(job);
  json.merge_patch(lines->value);
  const Result<JobSpec> read = FromJson<JobSpec>(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->phases, *phases);
}

TEST(ProposePhases, WhatCannotBeHalvedOrSharedSaysSo) {
  JobSpec odd = SmallGpt2();
  odd.model.layers = 5;
  EXPECT_THAT(ProposeVCycle(odd).status().message(), HasSubstr("halves model.layers, which is 5"));
  JobSpec few = SmallGpt2();
  few.schedule.warmup_steps = 0;
  few.train.steps = 3;
  EXPECT_THAT(ProposeVCycle(few).status().message(), HasSubstr("leaves no step"));
  JobSpec phased = SmallGpt2();
  phased.phases.resize(2);
  EXPECT_EQ(ProposeVCycle(phased).status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::planner
