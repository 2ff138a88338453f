#include "coordinator/scheduler/trials.h"

#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

Plan OneThread(int64_t ranks, int64_t micro_batch, const std::string& worker = "a") {
  Plan plan;
  plan.rank_workers.assign(static_cast<size_t>(ranks), worker);
  plan.mesh.data = ranks;
  plan.threads_per_rank = 1;
  plan.micro_batch = micro_batch;
  plan.prediction.memory_per_rank.parameters_bytes = 10 * micro_batch;
  return plan;
}

/// A job that wants three plans tried, on a worker of four cores for which the planner has four.
struct Situation {
  JobSpec spec;
  Plan present = OneThread(4, 1);
  RunningJob job;
  ClusterProfile cluster;
  FreeMap free;
  std::vector<TriedPlan> tried;
  std::vector<Plan> plans = {OneThread(4, 1), OneThread(4, 2), OneThread(2, 2), OneThread(1, 4)};

  Situation() {
    WorkerProfile worker;
    worker.worker_id = "a";
    worker.cores = 4;
    cluster.workers = {worker};
    free["a"] = {4, 1000};
    spec.resources.try_plans = 3;
    job.steps_left = 1000;
    job.step_seconds = job.median_step_seconds = 1;
    job.start_seconds = 5;
  }
  Situation(const Situation&) = delete;
  Situation& operator=(const Situation&) = delete;

  std::optional<PlanChange> Find() {
    job.spec = &spec;
    job.plan = &present;
    return FindTrial(job, tried, cluster, free, RestartRules(),
                     [this](const JobSpec&, const ClusterProfile&) -> Result<PlanReport> {
                       PlanReport report;
                       for (const Plan& plan : plans) {
                         report.candidates.push_back({plan, report.candidates.empty(), true, ""});
                       }
                       return report;
                     });
  }
};

TEST(Trials, TheNextPlanOfThePlannerThatDidNotRunYetIsTried) {
  Situation s;
  std::optional<PlanChange> next = s.Find();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->why, "plan 2 of 3 to try: 4 ranks x 1 thread, micro-batch 2");
  s.tried = {{s.present, 1}};
  s.present = next->plan;
  next = s.Find();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->why, "plan 3 of 3 to try: 2 ranks x 1 thread, micro-batch 2");
}

TEST(Trials, TheFastestMeasuredGoesOn) {
  Situation s;
  s.tried = {{s.plans[0], 0.8}, {s.plans[1], 1.2}};
  s.present = s.plans[2];
  const std::optional<PlanChange> back = s.Find();
  ASSERT_TRUE(back);
  EXPECT_EQ(back->why,
            "4 ranks x 1 thread, micro-batch 1: 1.25 times as fast by what was measured");
  EXPECT_TRUE(SameParallelism(back->plan, s.plans[0]));
  s.tried = {{s.plans[0], 1.3}, {s.plans[1], 1.2}};
  EXPECT_FALSE(s.Find()) << "the present one is the fastest";
  s.tried = {{s.plans[0], 0.98}, {s.plans[1], 1.2}};
  EXPECT_FALSE(s.Find()) << "2 % may be noise";
}

TEST(Trials, APlanThatFailedIsNotTriedAgainAndNeverChosen) {
  Situation s;
  AttemptRecord failed;
  failed.plan = s.plans[1];
  failed.reason = Reason::kOutOfMemory;
  AddTried(failed, 0, s.tried);
  EXPECT_EQ(AfterFailedTrial(s.spec, failed, s.tried), nullptr) << "nothing else has run";
  AttemptRecord ran;
  ran.plan = s.plans[0];
  ran.reason = Reason::kReplanned;
  AddTried(ran, 1, s.tried);
  ASSERT_NE(AfterFailedTrial(s.spec, failed, s.tried), nullptr);
  EXPECT_TRUE(SameParallelism(*AfterFailedTrial(s.spec, failed, s.tried), s.plans[0]));
  s.job.history.ran_out_of_memory = true;
  s.present = OneThread(4, 1);
  EXPECT_FALSE(s.Find()) << "all that is left needs more memory than the present one";
  s.plans[3] = OneThread(1, 1);
  ASSERT_TRUE(s.Find());
  EXPECT_TRUE(SameParallelism(s.Find()->plan, s.plans[3]));
}

TEST(Trials, WhatAnAttemptThatLostItsWorkerTellsOfItsPlanIsNothing) {
  Situation s;
  AttemptRecord cut;
  cut.plan = s.plans[1];
  cut.reason = Reason::kWorkerLost;
  AddTried(cut, 0, s.tried);
  EXPECT_TRUE(s.tried.empty());
  AddTried(cut, 1.5, s.tried);
  ASSERT_EQ(s.tried.size(), 1u);
  EXPECT_EQ(s.tried[0].median_step_seconds, 1.5);
  EXPECT_EQ(AfterFailedTrial(s.spec, cut, s.tried), nullptr);
}

TEST(Trials, NotBeforeThePresentPlanWasMeasuredNorUnasked) {
  Situation s;
  s.job.median_step_seconds = 0;
  EXPECT_FALSE(s.Find());
  s.job.median_step_seconds = 1;
  s.spec.resources.try_plans = 1;
  EXPECT_FALSE(s.Find());
}

TEST(Trials, NotWhenWhatIsLeftTakesLessThanTenRestarts) {
  Situation s;
  s.job.steps_left = 99;  // a restart takes 10 s
  EXPECT_FALSE(s.Find());
  s.job.steps_left = 100;
  EXPECT_TRUE(s.Find());
}

TEST(Trials, OnlyWhatHasRoom) {
  Situation s;
  s.free["a"].cores = 3;  // others have the fourth
  const std::optional<PlanChange> next = s.Find();
  ASSERT_TRUE(next);
  EXPECT_TRUE(SameParallelism(next->plan, s.plans[2]));
}

TEST(Trials, RecomputationAloneIsNoOtherWay) {
  Plan kept = OneThread(2, 4), recomputed = kept;
  recomputed.block_memory_policy = {"recompute"};
  EXPECT_TRUE(SameParallelism(kept, recomputed));
  Plan spread = kept;
  spread.rank_workers = {"a", "b"};
  EXPECT_FALSE(SameParallelism(kept, spread));
}

}  // namespace
}  // namespace weft::coordinator
