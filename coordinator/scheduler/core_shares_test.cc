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

int64_t CoresOf(const StartDecision& start) {
  return AmountOf(start.plan).cores;
}

/// PlanGpus, but jobs named "large" need `cores` cores.
PlanFunction LargeNeeds(int64_t cores) {
  return [cores](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
    if (spec.name == "large" && AmountOf(cluster).cores < cores) return ExhaustedError("too large");
    return PlanGpus(spec, cluster);
  };
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

TEST(CoreShares, WhoGivesMemoryThatAnotherOneNeedsToGiveCoresIsNotSpared) {
  CoreSituation s(2, 4);
  s.snapshot.rules.share_exponent = 1;
  s.Run("wide", 8, 10000).name = "wide";
  for (WorkerProfile& worker : s.snapshot.cluster.workers) worker.cores = 6;
  for (auto& [worker, room] : s.snapshot.free) room = {2, 1000 - 4 * 50, {}};
  ResourceSpec& of_narrow = s.Run("narrow", 2, 100000).resources;
  of_narrow.max_ranks = of_narrow.threads_per_rank = 1;  // so that its share is one core
  s.Wait("new", 100).resources.ranks = 4;
  int64_t bytes = 0;
  const auto decide = [&](int64_t bytes_of_narrow) {
    bytes = bytes_of_narrow;
    s.plans[0]->prediction.memory_per_rank.parameters_bytes = 50;
    s.plans[1]->prediction.memory_per_rank.parameters_bytes = bytes;
    s.snapshot.free.at("m0").memory_bytes = 1000 - 4 * 50 - 2 * bytes;
    const SchedulerDecisions decisions =
        Schedule(s.snapshot, [&](const JobSpec& spec, const ClusterProfile& cluster) {
          Result<PlanReport> report = PlanGpus(spec, cluster);
          Plan& plan = report->candidates[0].plan;
          int64_t& of_a_rank = plan.prediction.memory_per_rank.parameters_bytes;
          // "wide" shards 400 bytes.
          of_a_rank = spec.name == "wide" ? 400 / std::ssize(plan.rank_workers) : bytes;
          if (spec.resources.ranks > 0) of_a_rank = 0;
          return report;
        });
    std::vector<std::string> ids;
    for (const ResizeDecision& resize : decisions.resizes) ids.push_back(resize.job_id);
    return ids;
  };
  EXPECT_THAT(decide(300), ElementsAre("wide")) << "400 bytes are left for it on m0";
  EXPECT_THAT(decide(301), ElementsAre("narrow", "wide"));
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

TEST(CoreShares, NobodyStartsOnMemoryThatAJobGivesUpToGrow) {
  CoreSituation s(1, 8);
  s.Run("runs", 2, 5000).name = "runs";
  s.plans.back()->prediction.memory_per_rank.parameters_bytes = 200;
  s.snapshot.free.at("m0").memory_bytes -= 400;  // of 1000
  s.Wait("late", 900000).resources.min_ranks = 4;
  const auto plan_with = [](int64_t bytes_of_late) {
    return [=](const JobSpec& spec, const ClusterProfile& cluster) {
      Result<PlanReport> report = PlanGpus(spec, cluster);
      MemoryBreakdown& memory = report->candidates[0].plan.prediction.memory_per_rank;
      memory.parameters_bytes = spec.name == "runs" ? 99 : bytes_of_late;
      return report;
    };
  };
  SchedulerDecisions decisions = Schedule(s.snapshot, plan_with(150));
  EXPECT_EQ(decisions.resizes.size(), 1u) << "to four ranks of 99";
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(CoresOf(decisions.starts[0]), 4);
  decisions = Schedule(s.snapshot, plan_with(151));
  EXPECT_EQ(decisions.resizes.size(), 1u);
  EXPECT_THAT(decisions.starts, IsEmpty()) << "the 4 bytes are free once it has stopped";
}

TEST(CoreShares, AJobThatNeedsMoreHasAsMuchAsItNeeds) {
  CoreSituation s(1, 16);
  s.snapshot.rules.share_exponent = 1;
  s.Wait("large", 1000).name = "large";
  s.Wait("a", 2000);
  s.Wait("b", 3000);
  s.Wait("c", 4000);
  const SchedulerDecisions decisions = Schedule(s.snapshot, LargeNeeds(6));
  ASSERT_EQ(decisions.starts.size(), 3u);
  EXPECT_EQ(decisions.starts[0].job_id, "large");
  EXPECT_EQ(CoresOf(decisions.starts[0]), 8) << "twice its share, not all";
  EXPECT_EQ(CoresOf(decisions.starts[1]), 4);
  EXPECT_EQ(CoresOf(decisions.starts[2]), 4);
}

TEST(CoreShares, AJobThatRanOutOfMemoryHasMoreWhereItsShareIsTooSmall) {
  CoreSituation s(1, 8);
  s.Wait("large", 1000).name = "large";
  s.Wait("small", 2000);
  Plan last = *CapacityPool(s.snapshot.cluster, s.snapshot.free).Place(CorePlan(4));
  last.prediction.memory_per_rank.parameters_bytes = 100;
  s.snapshot.queue[0].last_plan = &last;
  s.snapshot.queue[0].out_of_memory = s.snapshot.queue[0].ran_out_of_memory = true;
  const auto plan = [](const JobSpec& spec, const ClusterProfile& cluster) {
    return LargeNeeds(spec.resources.memory_per_rank_bytes > 0 ? 8 : 1)(spec, cluster);
  };
  const SchedulerDecisions decisions = Schedule(s.snapshot, plan);
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].job_id, "large");
  EXPECT_EQ(CoresOf(decisions.starts[0]), 8) << "with 4 ranks it would run out again";
}

TEST(CoreShares, WhatIsPromisedToOthersMakesNoJobInfeasible) {
  CoreSituation s(1, 8);
  s.Run("stops", 8, 50000);
  s.snapshot.active[0].stopping = true;
  s.Wait("large", 1000).name = "large";
  s.Wait("other", 2000);
  for (QueuedJob& job : s.snapshot.queue) job.promised = true;
  const SchedulerDecisions decisions = Schedule(s.snapshot, LargeNeeds(2));
  EXPECT_THAT(decisions.starts, IsEmpty());
  ASSERT_EQ(decisions.waits.size(), 2u);
  for (const WaitDecision& wait : decisions.waits) {
    EXPECT_FALSE(wait.infeasible) << wait.job_id;
    EXPECT_THAT(wait.message, HasSubstr("jobs that are stopping")) << wait.job_id;
  }
}

TEST(CoreShares, AreNotOfJobsThatNoMachineCanRun) {
  CoreSituation s(1, 8);
  s.Wait("alone", 100000);
  s.Wait("never", 50000);
  const std::string reason = "too large";
  s.snapshot.queue[1].infeasible_reason = &reason;
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(CoresOf(decisions.starts[0]), 8);
}

TEST(CoreShares, AreOfJobsThatNeedCpusWhereOthersHaveGpus) {
  CoreSituation s(1, 8);
  s.snapshot.cluster.workers[0].device = "cuda";
  for (const char* id : {"a", "b"}) {
    JobSpec& spec = s.Wait(id, 1000);
    spec.resources.device = "auto";
    spec.train.deterministic = "mesh";
    s.snapshot.queue.back().size.reset();
  }
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 2u);
  for (const StartDecision& start : decisions.starts) EXPECT_EQ(CoresOf(start), 4);
}

TEST(CoreShares, AJobThatNeedsNearlyAllHasAll) {
  CoreSituation s(1, 8);
  s.Wait("large", 1000).name = "large";
  s.Wait("small", 2000);
  const SchedulerDecisions decisions = Schedule(s.snapshot, LargeNeeds(6));
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].job_id, "large");
  EXPECT_EQ(CoresOf(decisions.starts[0]), 8);
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_FALSE(decisions.waits[0].infeasible);
}

}  // namespace
}  // namespace weft::coordinator
