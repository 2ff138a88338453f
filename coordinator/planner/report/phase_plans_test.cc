#include "coordinator/planner/report/phase_plans.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/spec/growth_fit.h"
#include "common/spec/open_choices.h"
#include "common/spec/phases.h"
#include "common/spec/planned_job.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/meshes.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/alternatives.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Large, half in all sizes with a batch that leaves nothing to share, and large again.
JobSpec VCycle() {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.phases.resize(3);
  for (PhaseSpec& phase : job.phases) phase.steps = 100;
  job.phases[1].steps = 400;
  job.phases[1].name = "small";
  job.phases[1].layers = 6;
  job.phases[1].width = 384;
  job.phases[1].global_batch = 1;
  job.phases[1].growth.method = "coalesce";
  job.phases[2].growth.method = "decoalesce";
  return job;
}

ClusterProfile TwoMachines() {
  return {{CpuMachine("a", 4, 16 * kGiB), CpuMachine("b", 4, 16 * kGiB)}};
}

TEST(PhasePlans, EachPhaseHasThePlanThatItWouldHaveAsAJob) {
  const JobSpec job = VCycle();
  PlanQuery query;
  query.costs.machines.emplace_back().price_per_hour = 2;
  const Result<PhasePlans> plans = PlanPhases(job, TwoMachines(), query);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  ASSERT_EQ(plans->phases.size(), 3u);
  double seconds = 0, flops = 0, price = 0;
  for (size_t i = 0; i < 3; ++i) {
    const PhasePlan& one = plans->phases[i];
    const JobSpec phase = JobOfPhase(job, i);
    const Result<PlanExplanation> alone = ExplainPlan(phase, TwoMachines(), query);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(ToJson(one.plan), ToJson(alone->report.candidates.front().plan));
    const int64_t machines = alone->details.front().machines;
    EXPECT_EQ(one.steps, phase.train.steps);
    EXPECT_EQ(one.width, phase.model.width);
    EXPECT_DOUBLE_EQ(one.run.steps_seconds,
                     static_cast<double>(phase.train.steps) * one.plan.prediction.step_seconds);
    EXPECT_DOUBLE_EQ(one.seconds, TotalSeconds(one.run));
    EXPECT_GT(one.seconds, one.run.steps_seconds + 1) << "it has to start";
    EXPECT_EQ(one.run.checkpoints, i == 1 ? 4 : 1);
    EXPECT_EQ(one.run.validations, (i == 1 ? 4 : 1) + (i > 0 ? 1 : 0));
    EXPECT_DOUBLE_EQ(one.flops, static_cast<double>(phase.train.steps) *
                                    one.plan.prediction.model_flops_per_step);
    EXPECT_NEAR(one.price, 2.0 * static_cast<double>(machines) * one.seconds / 3600,
                1e-9 * one.price);
    seconds += one.seconds;
    flops += one.flops;
    price += one.price;
  }
  EXPECT_EQ(plans->steps, 600);
  EXPECT_DOUBLE_EQ(plans->seconds, seconds);
  EXPECT_NEAR(TotalSeconds(plans->run), seconds, 1e-9 * seconds);
  PlanQuery second = query;
  second.phase = 2;
  const Result<PlanExplanation> explained = ExplainPlan(job, TwoMachines(), second);
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(ToJson(explained->run), ToJson(plans->phases[1].run));
  EXPECT_DOUBLE_EQ(plans->flops, flops);
  EXPECT_DOUBLE_EQ(plans->price, price);
  EXPECT_EQ(plans->kilowatt_hours, 0) << "nobody knows";
  // Another size, another mesh.
  EXPECT_EQ(RankCount(plans->phases[1].plan.mesh), 1);
  EXPECT_GT(RankCount(plans->phases[0].plan.mesh), 1);
  EXPECT_LT(plans->phases[1].parameters, plans->phases[0].parameters / 2);

  const std::string table = FormatPhasePlans(*plans);
  EXPECT_THAT(table, AllOf(HasSubstr("phase 2 of 3 (small)"), HasSubstr("\n  all "),
                           HasSubstr("`--phase N` explains one plan"),
                           HasSubstr("where the time goes"), HasSubstr("4 in ")));
}

TEST(PhasePlans, OneScheduleOfAllPhasesChangesNoPlan) {
  const JobSpec own = VCycle();
  JobSpec one = own;
  one.schedule.warmup_steps = 150;  // longer than the first phase
  for (PhaseSpec& phase : one.phases) phase.schedule = "continued";
  const auto plans = PlanPhases(one, TwoMachines(), {}), same = PlanPhases(own, TwoMachines(), {});
  ASSERT_TRUE(plans.ok() && same.ok()) << plans.status().message();
  ASSERT_EQ(plans->phases.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ToJson(plans->phases[i].plan), ToJson(same->phases[i].plan));
    EXPECT_EQ(plans->phases[i].flops, same->phases[i].flops);
  }
}

TEST(PhasePlans, AWishOfOnePlanIsRefused) {
  PlanQuery frontier, measure, soon;
  frontier.frontier = true;
  measure.measure = 2;
  soon.finish_within_seconds = 60;
  for (const PlanQuery& query : {frontier, measure, soon}) {
    const Status status = PlanPhases(VCycle(), TwoMachines(), query).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("hint: `weft plan --phase 1`"));
  }
}

/// Two phases, of 6 layers and of 12. With a batch of 1 only model-parallel ranks have something to
/// do.
JobSpec TwoPhases() {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.train.global_batch = 1;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 100;
  job.phases[0].layers = 6;
  job.phases[1].growth.method = "stack";
  return job;
}

TEST(PhasePlans, ThePlannerLeavesOutMeshesThatAPhaseRefuses) {
  const ClusterProfile machines = TwoMachines();
  JobSpec job = TwoPhases();
  job.train.global_batch = 2;
  job.phases[0].search = {.steps = 40, .layers = {2, 4, 6}, .image_sizes = {}};
  PlanQuery query;
  query.any_mesh = true;
  query.phase = 1;
  const JobSpec own = JobOfPhase(job, 0);
  const auto refuses = [&](const JobSpec& planned) {
    return !CheckPhaseCompatibility(job, 0, planned).ok();
  };
  // As a job of its own it might have some of them.
  bool any = false;
  for (const MeshFamily& family : MeshesOf(own, machines)) {
    JobSpec planned = own;
    family.mesh.Put(planned.resources);
    any = any || refuses(planned);
  }
  EXPECT_TRUE(any);
  const auto explained = ExplainPlan(job, machines, query);
  ASSERT_TRUE(explained.ok()) << explained.status().message();
  for (const PlanCandidate& candidate : explained->report.candidates) {
    EXPECT_FALSE(refuses(JobAsPlanned(own, candidate.plan))) << MeshText(candidate.plan);
  }
  for (const Alternative& alternative : explained->alternatives) {
    if (!alternative.name.starts_with("pipeline")) continue;
    EXPECT_FALSE(alternative.fits) << alternative.name;
  }
}

// Ranks have the whole model with its gradients meanwhile.
TEST(PhasePlans, WhatLearnsAGrowthOperatorHasRoom) {
  JobSpec job = TwoPhases();
  job.train.global_batch = 4;
  job.resources.ranks = 4;
  job.phases[0].width = 384;
  job.phases[1].growth.method = "fpi";
  job.phases[1].growth.optimizer_state = "new";
  const auto plan_of = [&](const JobSpec& asked) {
    return PlanJobPassing(PlannedJobOfPhase(asked, 1), TwoMachines(), CheckOfPhase(asked, 1));
  };
  JobSpec learned = job;
  learned.phases[1].growth.method = "ligo";
  for (void (*share)(ResourceSpec&) :
       {+[](ResourceSpec& r) { r.zero_stage = 3; }, +[](ResourceSpec& r) { r.tensor_parallel = 4; },
        +[](ResourceSpec& r) { r.pipeline_parallel = 4; }}) {
    share(job.resources = {});
    job.resources.ranks = 4;
    learned.resources = job.resources;
    const auto copied = plan_of(job), fit = plan_of(learned);
    ASSERT_TRUE(copied.ok() && fit.ok());
    const auto bytes_of = [](const Result<PlanReport>& report) {
      return TotalBytes(report->candidates.front().plan.prediction.memory_per_rank);
    };
    const int64_t whole = 8 * ShapeOf(JobOfPhase(job, 1)).counts.Total();
    EXPECT_GT(bytes_of(fit), whole);
    EXPECT_GT(bytes_of(fit), bytes_of(copied));
    learned.resources.memory_per_rank_bytes = whole;
    const Status refused = plan_of(learned).status();
    EXPECT_EQ(refused.code(), StatusCode::kExhausted);
    EXPECT_THAT(refused.message(), HasSubstr("to learn the growth operator with the whole model"));
  }
}

TEST(PhasePlans, OfWhatIsOpenOnlyWhatThePhaseAllowsIsChosen) {
  JobSpec job = TwoPhases();
  job.resources.ranks = 1;
  job.resources.offload_optimizer = "auto";
  job.resources.device_memory_bytes = int64_t{1} << 30;  // too little for all
  PlanQuery query;
  query.phase = 1;
  const auto offloaded = ExplainPlan(job, TwoMachines(), query);
  ASSERT_TRUE(offloaded.ok()) << offloaded.status().message();
  EXPECT_NE(offloaded->report.candidates.front().plan.offload_optimizer, "none");
  job.phases[0].search = {.steps = 40, .layers = {2, 4, 6}, .image_sizes = {}};
  EXPECT_EQ(ExplainPlan(job, TwoMachines(), query).status().code(), StatusCode::kExhausted);
  EXPECT_EQ(PlanJob(PlannedJobOfPhase(job, 0), TwoMachines()).status().code(),
            StatusCode::kExhausted)
      << "submitted, it is planned likewise";
}

TEST(PhasePlans, AJobIsRefusedWhenAPhaseRefusesAllThatIsOpen) {
  JobSpec job = TwoPhases();
  job.train.global_batch = 2;
  job.phases[0].search = {.steps = 40, .layers = {2, 4, 6}, .image_sizes = {}};
  job.resources.offload_optimizer = "auto";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  JobSpec delayed = job, weights = job;
  delayed.resources.delayed_update = true;
  weights.resources.offload_parameters = "host";
  for (const JobSpec& outside : {delayed, weights}) {
    const Status status = PlanPhases(outside, TwoMachines(), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("phases["),
                      HasSubstr("does not go with resources.offload_optimizer host")));
  }
}

TEST(PhasePlans, WhereNoChoicePassesTheCheckItSaysWhy) {
  JobSpec job = SmallGpt2();
  job.resources.offload_optimizer = "auto";
  const JobCheck open_alone = [](const JobSpec& planned) {
    return LeavesChoices(planned) ? OkStatus() : InvalidError("it is to be open");
  };
  const ClusterProfile machines = TwoMachines();
  for (const Status& status : {PlanJobPassing(job, machines, open_alone).status(),
                               PlanAnyMesh(job, machines, 0, {}, open_alone).status(),
                               FastestPlans(job, machines, false, 1, open_alone).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_EQ(status.message(), "it is to be open");
  }
  for (const Alternative& way : AlternativesOf(job, machines, nullptr, open_alone)) {
    EXPECT_FALSE(way.fits) << way.name;
  }
}

TEST(PhasePlans, HintsAreWhatThePhaseAllows) {
  const auto message = [](const JobSpec& job, size_t phase) {
    const auto report =
        PlanJobPassing(PlannedJobOfPhase(job, phase), TwoMachines(), CheckOfPhase(job, phase));
    EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
    return report.status().message();
  };
  JobSpec device = TwoPhases(), ranks = TwoPhases();
  device.resources.ranks = 1;
  device.resources.device_memory_bytes = int64_t{256} << 20;
  ranks.train.global_batch = 16;
  ranks.resources.ranks = 2;
  ranks.resources.memory_per_rank_bytes = int64_t{256} << 20;
  EXPECT_THAT(message(device, 1), HasSubstr("(resources.offload_optimizer host)"));
  EXPECT_THAT(message(ranks, 1), HasSubstr("(resources.zero_stage 1)"));
  EXPECT_THAT(message(device, 0), HasSubstr("(resources.offload_optimizer host)"));
  device.train.global_batch = 2;
  device.phases[0].search = {.steps = 40, .layers = {2, 4, 6}, .image_sizes = {}};
  EXPECT_THAT(message(device, 0), Not(HasSubstr("(resources.offload_optimizer host)")));
}

TEST(PhasePlans, ThePhaseThatIsAskedForIsOneOfTheJob) {
  PlanQuery query;
  query.phase = 3;
  const Status status = ExplainPlan(TwoPhases(), TwoMachines(), query).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("phase 3 is asked for, and the job has 2"));
}

// Each of the choices has a third of the steps of the search, what follows has the largest.
TEST(PhasePlans, TheStepsOfASearchHaveTheWorkOfItsChoices) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.resources.ranks = 1;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 100;
  job.phases[0].layers = 6;
  job.phases[1].growth.method = "stack";
  const auto whole = PlanPhases(job, TwoMachines(), {});
  job.phases[0].search.steps = 40;
  job.phases[0].search.layers = {2, 4, 6};
  const auto searched = PlanPhases(job, TwoMachines(), {});
  ASSERT_TRUE(whole.ok() && searched.ok());
  double mean = 0;
  for (const int64_t layers : {2, 4, 6}) {
    JobSpec part = JobOfPhase(job, 0);
    part.model.layers = layers;
    mean += StepFlops(part) / StepFlops(JobOfPhase(job, 0)) / 3;
  }
  EXPECT_LT(mean, 0.9);
  const double share = 0.4 * mean + 0.6;
  EXPECT_NEAR(searched->phases[0].flops, share * whole->phases[0].flops,
              1e-9 * whole->phases[0].flops);
  EXPECT_NEAR(searched->phases[0].run.steps_seconds, share * whole->phases[0].run.steps_seconds,
              1e-9 * whole->phases[0].run.steps_seconds);
  EXPECT_EQ(searched->phases[1].flops, whole->phases[1].flops);
}

TEST(PhasePlans, WhatLearnsAGrowthOperatorIsPartOfItsPhase) {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 0;
  job.resources.ranks = 1;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 100;
  job.phases[0].layers = 6;
  job.phases[0].width = 384;
  job.phases[1].growth.method = "fpi";
  const auto copied = PlanPhases(job, TwoMachines(), {});
  job.phases[1].growth.method = "ligo";
  job.phases[1].growth.fit_steps = 20;
  const auto learned = PlanPhases(job, TwoMachines(), {});
  ASSERT_TRUE(copied.ok() && learned.ok());
  const double fit = GrowthFitFlops(job, 1);
  const double steps = 100 * StepFlops(JobOfPhase(job, 1));
  EXPECT_GT(fit, 0.2 * steps) << "20 steps, and the products of the operator";
  EXPECT_NEAR(learned->phases[1].flops / copied->phases[1].flops, 1 + fit / steps, 1e-9);
  const RunTime& run = learned->phases[1].run;
  EXPECT_NEAR(run.growth_fit_seconds / run.steps_seconds, fit / steps, 1e-9);
  EXPECT_EQ(run.steps_seconds, copied->phases[1].run.steps_seconds);
  EXPECT_EQ(learned->phases[1].steps, 100);
  EXPECT_EQ(learned->phases[0].flops, copied->phases[0].flops);
}

TEST(PhasePlans, AnErrorNamesItsPhase) {
  JobSpec job = VCycle();
  ClusterProfile small{{CpuMachine("a", 4, int64_t{2} << 30)}};
  const Status status = PlanPhases(job, small, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("phase 1 of 3"));
  EXPECT_THAT(ExplainPlan(job, small, {}).status().message(),
              HasSubstr("phases: each of them has a plan of its own"));
}

}  // namespace
}  // namespace weft::planner
