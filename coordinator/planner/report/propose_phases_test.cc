#include "coordinator/planner/report/propose_phases.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// One of 12 layers whose steps are long against the start of a process.
JobSpec JobOf(const std::string& family) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 400;
  job.optimizer.learning_rate = 3e-4;
  job.train.steps = 4000;
  job.model.family = family;
  if (family == "llama") {
    job.model.kv_heads = 4;
    job.model.mlp_width = 2048;
  }
  if (family == "vit") {
    job.model.vocab_size = 0;
    job.model.classes = 1000;
    job.model.image_size = 224;
    job.model.patch_size = 16;
    job.train.sequence_length = 0;
    job.data.train = {"images-idx3-ubyte"};
  }
  return job;
}

/// As `weft plan` asks on these machines.
Result<PhasePlans> OnTwoMachines(const JobSpec& job) {
  return PlanPhases(job, {{CpuMachine("a", 4, 64 * kGiB), CpuMachine("b", 4, 64 * kGiB)}}, {});
}

std::vector<int64_t> StepsOf(const PhaseProposal& proposal) {
  std::vector<int64_t> steps;
  for (const PhaseSpec& phase : proposal.phases) steps.push_back(phase.steps);
  return steps;
}

JobSpec WithPhases(JobSpec job, const PhaseProposal& proposal) {
  job.phases = proposal.phases;
  return job;
}

TEST(ProposePhases, EachFamilyHasTheStepsThatSavedMostAndWhatTheyTake) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    SCOPED_TRACE(family);
    const JobSpec job = JobOf(family);
    const auto proposal = ProposePhases(job, 0, OnTwoMachines);
    ASSERT_TRUE(proposal.ok()) << proposal.status().message();
    EXPECT_EQ(StepsOf(*proposal), (std::vector<int64_t>{200, 4800, 1200}));
    const JobSpec cycle = WithPhases(job, *proposal);
    EXPECT_TRUE(ValidateJob(cycle).ok()) << ValidateJob(cycle).message();
    const int64_t widths[] = {768, 384, 768}, warmups[] = {50, 96, 24};
    const bool decoder = job.model.family == "gpt2" || job.model.family == "llama";
    const double rates[] = {3e-4, decoder ? 12e-4 : 6e-4, 3e-4};
    for (size_t i = 0; i < 3; ++i) {
      const JobSpec phase = JobOfPhase(cycle, i);
      EXPECT_EQ(phase.model.width, widths[i]);
      EXPECT_EQ(phase.model.layers, widths[i] / 64);
      EXPECT_EQ(phase.schedule.warmup_steps, warmups[i]);
      EXPECT_EQ(phase.schedule.kind, i < 2 ? "constant" : job.schedule.kind);
      EXPECT_DOUBLE_EQ(phase.optimizer.learning_rate, rates[i]);
    }

    // The same as the job with these phases is planned to take, growth and starts included.
    const auto planned = OnTwoMachines(cycle);
    ASSERT_TRUE(planned.ok());
    EXPECT_DOUBLE_EQ(proposal->plans.seconds, planned->seconds);
    EXPECT_DOUBLE_EQ(proposal->plans.flops, planned->flops);
    EXPECT_GT(proposal->plans.run.weights_seconds, 0);
    double flops = 0;
    for (size_t i = 0; i < 3; ++i) {
      const JobSpec phase = JobOfPhase(cycle, i);
      flops += static_cast<double>(phase.train.steps) * StepFlops(phase);
    }
    EXPECT_NEAR(proposal->plans.flops, flops, 1e-3 * flops);
    EXPECT_NEAR(proposal->scratch_flops, 4000 * StepFlops(job), 1e-3 * proposal->scratch_flops);
    EXPECT_LT(proposal->plans.flops, 0.75 * proposal->scratch_flops);
    EXPECT_LT(proposal->plans.seconds, proposal->scratch_seconds);
  }
}

TEST(ProposePhases, ABudgetOfSecondsIsSpentAndNotMore) {
  for (const char* family : {"gpt2", "vit"}) {
    SCOPED_TRACE(family);
    const JobSpec job = JobOf(family);
    const auto recipe = ProposePhases(job, 0, OnTwoMachines);
    ASSERT_TRUE(recipe.ok()) << recipe.status().message();
    for (const double share : {0.3, 1.5}) {
      const double budget = share * recipe->plans.seconds;
      const auto proposal = ProposePhases(job, budget, OnTwoMachines);
      ASSERT_TRUE(proposal.ok()) << proposal.status().message();
      EXPECT_LE(proposal->plans.seconds, budget);
      EXPECT_GT(proposal->plans.seconds, 0.97 * budget);
      const std::vector<int64_t> steps = StepsOf(*proposal);
      EXPECT_NEAR(static_cast<double>(steps.back()), 6.0 * static_cast<double>(steps.front()), 4);
      EXPECT_EQ(proposal->budget_seconds, budget);
      EXPECT_DOUBLE_EQ(proposal->scratch_seconds, recipe->scratch_seconds);
    }
  }
}

TEST(ProposePhases, PhasesThatTakeLongerThanTrainingFromScratchAreSaidToBe) {
  // Each attempt starts for longer than its few steps take.
  JobSpec shortest = JobOf("gpt2");
  shortest.model.layers = 4;
  shortest.model.width = 64;
  shortest.model.heads = 4;
  shortest.model.vocab_size = 300;
  shortest.train.steps = 100;
  shortest.schedule.warmup_steps = 0;
  shortest.train.global_batch = 1;
  shortest.train.sequence_length = 16;
  const auto proposal = ProposePhases(shortest, 0, OnTwoMachines);
  ASSERT_TRUE(proposal.ok()) << proposal.status().message();
  EXPECT_GT(proposal->plans.seconds, proposal->scratch_seconds);
  EXPECT_THAT(FormatProposal(*proposal), HasSubstr("% more seconds and "));
}

TEST(ProposePhases, ItsLinesAreThePhasesAndSayWhatIsAssumed) {
  const JobSpec job = JobOf("gpt2");
  const auto proposal = ProposePhases(job, 0, OnTwoMachines);
  ASSERT_TRUE(proposal.ok()) << proposal.status().message();
  const std::string text = FormatProposal(*proposal);
  EXPECT_THAT(text, AllOf(HasSubstr("#   phase 3 of 3: "), HasSubstr("#   all: "),
                          HasSubstr("#   from scratch: "), HasSubstr("% fewer seconds and "),
                          HasSubstr("no model of the loss")));
  const Result<Document> lines = ParseYaml(text, "lines");
  ASSERT_TRUE(lines.ok()) << text;
  Json json = ToJson(job);
  json.merge_patch(lines->value);
  const Result<JobSpec> read = FromJson<JobSpec>(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->phases, proposal->phases);
}

TEST(ProposePhases, WhatCannotBeHalvedOrPaidIsRefused) {
  JobSpec odd = JobOf("gpt2");
  odd.model.layers = 5;
  EXPECT_THAT(ProposePhases(odd, 0, OnTwoMachines).status().message(),
              HasSubstr("halves model.layers, and it is 5"));
  JobSpec heads = JobOf("llama");
  heads.model.heads = heads.model.kv_heads = 3;
  EXPECT_THAT(ProposePhases(heads, 0, OnTwoMachines).status().message(),
              HasSubstr("halves model.heads, and it is 3"));
  JobSpec few = JobOf("gpt2");
  few.train.steps = 3;
  few.schedule.warmup_steps = 0;
  EXPECT_THAT(ProposePhases(few, 0, OnTwoMachines).status().message(),
              HasSubstr("has no step of phase 1 of 3"));
  EXPECT_THAT(ProposePhases(JobOf("gpt2"), 1, OnTwoMachines).status().message(),
              AllOf(HasSubstr("before any step"), HasSubstr("the budget is 1")));
  JobSpec phased = JobOf("gpt2");
  phased.phases.resize(2);
  EXPECT_EQ(ProposePhases(phased, 0, OnTwoMachines).status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::planner
