// Jobs on CPUs that leave their number of ranks to the planner share the cores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Machines without GPUs, with jobs that wait and run as in GpuSituation. Steps of a job take a
/// second over its cores.
struct CoreSituation {
  explicit CoreSituation(int machines, int64_t cores) {
    snapshot.cluster = Machines(machines, 0);
    for (WorkerProfile& worker : snapshot.cluster.workers) {
      worker.device = "cpu";
      worker.cores = cores;
    }
    snapshot.free = AllFree(snapshot.cluster);
    snapshot.now = GpuSituation::kNow;
  }
  JobSpec& Spec() {
    JobSpec& spec = *specs.emplace_back(std::make_unique<JobSpec>());
    spec.resources.device = "cpu";
    return spec;
  }
  /// A job of an open size that takes `seconds` on one core.
  JobSpec& Wait(const std::string& id, int64_t seconds) {
    JobSpec& spec = Spec();
    QueuedJob& job = snapshot.queue.emplace_back();
    job.id = id;
    job.spec = &spec;
    job.submitted_at = snapshot.now;
    job.steps_left = seconds;
    job.size = JobSize{{0, 1}, 1};
    return spec;
  }
  /// One that runs on `cores` cores for `seconds` more, and may be stopped.
  JobSpec& Run(const std::string& id, int64_t cores, int64_t seconds) {
    JobSpec& spec = Spec();
    const CapacityPool pool(snapshot.cluster, snapshot.free);
    Plan& plan = *plans.emplace_back(std::make_unique<Plan>(*pool.Place(CorePlan(cores))));
    TakeCapacity(plan, snapshot.free);
    ActiveJob& job = snapshot.active.emplace_back();
    job.id = id;
    job.submitted_at = snapshot.now - 10000;
    job.job.spec = &spec;
    job.job.plan = &plan;
    job.job.attempt_seconds = 10000;
    job.job.steps_left = seconds * cores;
    job.job.step_seconds = plan.prediction.step_seconds;
    job.job.saved = true;
    return spec;
  }
  SchedulerDecisions Decide() const { return Schedule(snapshot, PlanGpus); }

  SchedulerSnapshot snapshot;
  std::vector<std::unique_ptr<JobSpec>> specs;
  std::vector<std::unique_ptr<Plan>> plans;
};

int64_t CoresOf(const StartDecision& start) {
  return AmountOf(start.plan).cores;
}

TEST(CoreShares, JobsThatWaitStartSideBySide) {
  CoreSituation s(1, 8);
  s.Wait("long", 100000);
  s.Wait("short", 50000);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 2u);
  EXPECT_EQ(decisions.starts[0].job_id, "short");
  EXPECT_EQ(CoresOf(decisions.starts[0]), 4);  // 1 - (1/2)^5 of 8, as a power of two
  EXPECT_EQ(CoresOf(decisions.starts[1]), 4);
}

TEST(CoreShares, OfALoneJobAreEverything) {
  CoreSituation s(2, 8);
  s.Wait("alone", 100000);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(CoresOf(decisions.starts[0]), 16);
}

TEST(CoreShares, KeepToOneMachineWhereItHoldsThem) {
  CoreSituation s(2, 4);
  s.Run("runs", 1, 50000).resources.ranks = 1;
  s.Wait("new", 100000);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("m1", "m1", "m1", "m1"));
}

TEST(CoreShares, WhoHoldsMoreGivesTheRest) {
  CoreSituation s(1, 8);
  s.Run("runs", 8, 50000);
  s.Wait("new", 30000);
  SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(decisions.starts, IsEmpty());
  EXPECT_THAT(decisions.preemptions, IsEmpty());
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].job_id, "runs");
  EXPECT_EQ(decisions.resizes[0].for_job, "new");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).cores, 4);
  EXPECT_EQ(decisions.resizes[0].change.why,
            "8 to 4 ranks: 0.5 times as fast by the plan, for job new");
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("hold more than their share: runs"));
  s.snapshot.active[0].job.attempt_seconds = s.snapshot.rules.protected_seconds - 1;
  EXPECT_THAT(s.Decide().resizes, IsEmpty()) << "it has just started";
}

TEST(CoreShares, WhoRunsHasItsShareBeforeThoseForWhomNothingIsLeft) {
  CoreSituation s(1, 8);
  s.Run("runs", 2, 5000);
  s.Wait("late", 900000).resources.min_ranks = 6;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(decisions.starts, IsEmpty());
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].job_id, "runs");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).cores, 4);
}

TEST(CoreShares, AJobThatNeedsMoreHasMore) {
  CoreSituation s(1, 8);
  s.Wait("large", 1000).name = "large";
  s.Wait("small", 2000);
  const auto plan = [](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
    if (spec.name == "large" && AmountOf(cluster).cores < 6) return ExhaustedError("too large");
    return PlanGpus(spec, cluster);
  };
  const SchedulerDecisions decisions = Schedule(s.snapshot, plan);
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].job_id, "large");
  EXPECT_EQ(CoresOf(decisions.starts[0]), 8);
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_FALSE(decisions.waits[0].infeasible);
}

}  // namespace
}  // namespace weft::coordinator
