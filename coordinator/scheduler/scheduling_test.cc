#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(Scheduling, TheLeastWorkGoesFirst) {
  GpuSituation s(1);
  s.Wait("long", 8, 1000);
  s.Wait("short", 8, 500);
  s.Wait("narrow", 1, 1000);
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("narrow"));
  s.snapshot.queue.pop_back();
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("short"));
}

TEST(Scheduling, AgeBringsALongJobToItsTurn) {
  GpuSituation s(1);
  const double factor = s.snapshot.rules.age_factor;
  s.Wait("long", 8, 1000, factor * 999 + 1);
  s.Wait("short", 8, 1);
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("long"));
  s.snapshot.queue[0].submitted_at += 2;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("short"));
}

TEST(Scheduling, AHigherPriorityGoesFirst) {
  GpuSituation s(1);
  s.Wait("short", 8, 10);
  s.Wait("urgent", 8, 1000).priority = 1;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("urgent"));
}

TEST(Scheduling, BackfillsWhatEndsBeforeTheReservation) {
  GpuSituation s(1);
  s.snapshot.rules.age_factor = 0;
  s.snapshot.rules.preempt_factor = 0;
  s.Run("runs", 4, 100);
  s.Wait("wide", 8, 1000);
  s.Wait("late", 4, 101);
  s.Wait("in-time", 4, 99);
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("in-time"));
  ASSERT_EQ(decisions.waits.size(), 2u);
  ASSERT_EQ(decisions.waits[0].job_id, "wide");
  EXPECT_NEAR(*decisions.waits[0].start_in_seconds, 100, 1);
  EXPECT_THAT(decisions.waits[0].blocked_by, ElementsAre("runs"));
  EXPECT_THAT(decisions.waits[1].message, HasSubstr("waits behind job wide"));
  EXPECT_THAT(decisions.waits[1].blocked_by, ElementsAre("wide"));
}

TEST(Scheduling, BackfillsWhatTheReservationLeaves) {
  GpuSituation s(2);
  s.snapshot.rules.age_factor = 0;
  s.snapshot.rules.preempt_factor = 0;
  s.Run("runs", 8, 100);
  s.Wait("wide", 12, 1000);
  s.Wait("too-much", 5, 10000);
  s.Wait("spare", 4, 10000);
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("spare"));
}

TEST(Scheduling, AReservationMovesWhereAnotherPlaceIsFreeAtThatTime) {
  GpuSituation s(3);
  s.snapshot.rules.age_factor = 0;
  s.snapshot.rules.preempt_factor = 0;
  // The reservation takes the first machine, which is free now, and the second.
  s.Run("ended", 8, 1);
  s.Run("runs", 8, 100);
  s.Run("runs-too", 8, 100);
  s.snapshot.active.erase(s.snapshot.active.begin());
  s.snapshot.free["m0"] = AllFree(s.snapshot.cluster)["m0"];
  s.Wait("wide", 16, 1000);
  s.Wait("long", 8, 10000);
  SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("long"));
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_NEAR(*decisions.waits[0].start_in_seconds, 100, 1);

  // There is none before 200 s.
  s.snapshot.active.back().job.steps_left *= 2;
  decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  ASSERT_EQ(decisions.waits.size(), 2u);
  EXPECT_THAT(decisions.waits[1].message, HasSubstr("waits behind job wide"));
}

TEST(Scheduling, APriorityDisplacesThoseThatLoseLeast) {
  GpuSituation s(1);
  s.Run("unsaved", 4, 1000).unsaved_seconds = 900;
  s.Run("saved", 4, 1000).unsaved_seconds = 10;
  s.Wait("urgent", 4, 100).priority = 1;
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Victims(decisions), ElementsAre("saved"));
  EXPECT_EQ(decisions.preemptions[0].for_job, "urgent");
  EXPECT_EQ(decisions.preemptions[0].why, "for job urgent, which has priority 1, over 0");
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("give way to it: saved"));
  s.snapshot.active[1].preemptible = false;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("unsaved"));
  s.snapshot.active[0].may_stop = false;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty());
}

TEST(Scheduling, WhatAPreemptionLosesCountsOnEachGpu) {
  GpuSituation s(2);
  s.Run("wide", 8, 1000).unsaved_seconds = 9;
  for (int i = 0; i < 8; ++i) {
    s.Run("narrow-" + std::to_string(i), 1, 1000).unsaved_seconds = 10 + i;
  }
  s.Wait("urgent", 1, 100).priority = 1;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("narrow-0")) << "the wide one loses it eight times";
  s.snapshot.queue.clear();
  s.Wait("urgent", 8, 100).priority = 1;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("wide")) << "eight narrow ones lose more together";
}

TEST(Scheduling, NobodyIsDisplacedInVain) {
  GpuSituation s(1);
  s.Run("low", 4, 1000);
  s.Run("same", 4, 1000).priority = 1;
  s.Wait("urgent", 8, 100).priority = 1;
  s.snapshot.rules.preempt_factor = 0;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "what one of them frees is not enough";
  s.snapshot.queue[0].spec =
      s.specs.emplace_back(std::make_unique<JobSpec>(*s.snapshot.queue[0].spec)).get();
  s.specs.back()->resources.ranks = 4;
  s.snapshot.queue[0].size->amount.gpus = 4;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("low"));
}

TEST(Scheduling, MuchShorterJobsDisplaceLongOnes) {
  GpuSituation s(1);
  ActiveJob& running = s.Run("long", 8, 100000);
  s.Wait("short", 8, 100);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Victims(decisions), ElementsAre("long"));
  EXPECT_THAT(decisions.preemptions[0].why, HasSubstr("much less left"));
  running.job.attempt_seconds = s.snapshot.rules.protected_seconds - 1;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "it has just started";
  running.job.attempt_seconds = 10000;
  running.preemptions = s.snapshot.rules.most_preemptions;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "it was displaced often";
  running.preemptions = 0;
  running.job.steps_left = 8 * 120;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "it is not that much longer";
  running.job.steps_left = 8 * 100000;
  s.snapshot.rules.preempt_factor = 0;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty());
}

TEST(Scheduling, AJobThatStartsSoonDisplacesNobody) {
  GpuSituation s(1);
  s.Run("long", 4, 100000);
  s.Run("ends", 4, 30);
  s.Wait("short", 4, 100);
  EXPECT_THAT(Victims(s.Decide()), IsEmpty());
  s.snapshot.active[1].job.steps_left = 4 * 10000;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("long"));
}

TEST(Scheduling, WhatStoppingJobsLeaveIsKeptForTheJobThatDisplacedThem) {
  GpuSituation s(1);
  s.Run("stops", 4, 1000).stopping = true;
  s.Run("runs", 4, 1000);
  s.Wait("urgent", 4, 5000).priority = 1;
  s.Wait("quick", 4, 1);
  s.snapshot.rules.preempt_factor = 0;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  EXPECT_THAT(Victims(decisions), IsEmpty());
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("have saved"));
  // A job that goes on by another plan keeps what that needs.
  Plan next = *s.snapshot.active[0].job.plan;
  s.snapshot.active[0].next_plan = &next;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("runs"));
}

TEST(Scheduling, WhatAStoppingJobGoesOnWithIsNotGivenToOthers) {
  GpuSituation s(1);
  ActiveJob& stops = s.Run("stops", 2, 1000);
  stops.stopping = true;
  s.Wait("quick", 4, 1);
  ASSERT_THAT(Starts(s.Decide()), ElementsAre("quick"));
  Plan next = *s.snapshot.active[0].job.plan;
  for (int64_t device = 2; device < 6; ++device) {
    next.rank_workers.push_back(next.rank_workers[0]);
    next.rank_devices.push_back(device);
  }
  s.snapshot.active[0].next_plan = &next;
  EXPECT_THAT(Starts(s.Decide()), IsEmpty()) << "two are left";
  s.Wait("narrow", 2, 1).priority = 1;
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Starts(decisions), ElementsAre("narrow"));
  EXPECT_THAT(decisions.starts[0].plan.rank_devices, ElementsAre(6, 7));
}

TEST(Scheduling, AJobForWhichOthersWereStoppedGoesFirst) {
  GpuSituation s(1);
  s.Wait("quick", 8, 1).priority = 5;
  s.Wait("promised", 8, 1000).promised = true;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("promised"));
}

TEST(Scheduling, WhatTheFirstJobMayDisplaceNeedNotLeaveTheGpusIdle) {
  GpuSituation s(1);
  s.snapshot.rules.age_factor = 1e9;
  s.Run("ends", 4, 5000);
  s.Wait("wide", 8, 4900);
  s.Wait("long", 4, 100000);
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("long")) << "it gives way in 5000 s";
  EXPECT_NEAR(*decisions.waits[0].start_in_seconds, 5000, 1);
  s.specs.back()->scheduling.preemptible = false;
  EXPECT_THAT(Starts(s.Decide()), IsEmpty());
}

TEST(Scheduling, ElasticJobsShareTheClusterWhileOthersWait) {
  GpuSituation s(1);
  s.snapshot.rules.share_exponent = 1;
  for (int i = 0; i < 4; ++i) s.Wait("j" + std::to_string(i), 0, 100000).size.reset();
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.starts.size(), 4u);
  for (const StartDecision& start : decisions.starts) EXPECT_EQ(AmountOf(start.plan).gpus, 2);
}

TEST(Scheduling, ThoseWithLittleLeftHaveMoreOfIt) {
  GpuSituation s(1);
  s.Wait("long", 0, 3000);
  s.Wait("short", 0, 1000);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Starts(decisions), ElementsAre("short", "long"));
  EXPECT_EQ(AmountOf(decisions.starts[0].plan).gpus, 4);  // 1 - (1/2)^5 of 8, as a power of two
  EXPECT_EQ(AmountOf(decisions.starts[1].plan).gpus, 4);
}

TEST(Scheduling, AJobForWhichItsShareIsTooSmallHasAsMuchAsItNeeds) {
  GpuSituation s(2);
  s.snapshot.rules.share_exponent = 1;
  s.Wait("large", 0, 1000);
  s.specs.back()->name = "large";
  for (const char* id : {"a", "b", "c"}) s.Wait(id, 0, 2000);
  const SchedulerDecisions decisions = Schedule(
      s.snapshot, [](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
        const int64_t most = spec.resources.max_ranks;
        if (spec.name == "large" && most > 0 && most < 6) return ExhaustedError("too large");
        return PlanGpus(spec, cluster);
      });
  ASSERT_THAT(Starts(decisions), ElementsAre("large", "a", "b"));
  EXPECT_EQ(AmountOf(decisions.starts[0].plan).gpus, 8) << "twice its share, not all";
  EXPECT_EQ(AmountOf(decisions.starts[1].plan).gpus, 4);
}

TEST(Scheduling, WhoHoldsMoreThanItsShareGivesTheRest) {
  GpuSituation s(1);
  // Elastic: what it holds came from a time without others.
  s.Run("runs", 8, 50000);
  s.specs.back()->resources.ranks = 0;
  s.Wait("new", 0, 30000);
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].job_id, "runs");
  EXPECT_EQ(decisions.resizes[0].for_job, "new");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 4);
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("hold more than their share: runs"));
  s.snapshot.active[0].job.attempt_seconds = s.snapshot.rules.protected_seconds - 1;
  EXPECT_THAT(s.Decide().resizes, IsEmpty()) << "it has just started";
}

TEST(Scheduling, WhoGivesItsShareDoesNotGiveItInVain) {
  GpuSituation s(2);
  s.Run("keeps", 5, 450).preemptible = false;
  s.Run("last", 3, 200000);
  s.Run("whole", 8, 10000);
  s.Wait("machine", 8, 500);
  s.Wait("small", 2, 2500);
  std::vector<std::string> for_machine;
  for (const PreemptDecision& preemption : s.Decide().preemptions) {
    if (preemption.for_job == "machine") for_machine.push_back(preemption.job_id);
  }
  EXPECT_THAT(for_machine, ElementsAre("whole")) << "the last one has no machine to give";
}

TEST(Scheduling, WhoRunsHasItsShareBeforeThoseForWhomNothingIsLeft) {
  GpuSituation s(1);
  s.Run("runs", 2, 5000);
  s.specs.back()->resources.ranks = 0;
  s.specs.back()->resources.max_ranks = 8;
  s.Wait("late", 0, 900000);
  s.specs.back()->resources.min_ranks = 6;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].job_id, "runs");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 4);
}

TEST(Scheduling, AQuotaIsLentAndTakenBack) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("owner", 4), Queue("other", 4)};
  s.Run("own", 4, 1000).queue = "other";
  ActiveJob& borrows = s.Run("borrows", 4, 1000);
  borrows.queue = "other";
  borrows.priority = 9;
  s.Wait("owned", 4, 9000).queue = "owner";
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.preemptions.size(), 1u) << "one of them is within the quota of its queue";
  EXPECT_THAT(decisions.preemptions[0].why, HasSubstr("quota of queue owner"));
  s.snapshot.queue[0].size->amount.gpus = 5;
  s.specs.back()->resources.ranks = 5;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "the owner itself would borrow";
}

TEST(Scheduling, AQueueKeepsItsLimit) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("limited"), Queue("other")};
  s.snapshot.queues[0].limit_gpus = 4;
  s.Run("runs", 2, 1000).queue = "limited";
  s.Wait("over", 3, 500).queue = "limited";
  s.Wait("late", 1, 1001).queue = "limited";
  s.Wait("in-time", 1, 999).queue = "limited";
  s.Wait("never", 5, 9999).queue = "limited";
  s.Wait("free", 2, 9999).queue = "other";
  s.snapshot.rules.age_factor = 0;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), UnorderedElementsAre("in-time", "free"));
  for (const WaitDecision& wait : decisions.waits) {
    EXPECT_EQ(wait.reason, Reason::kWaitingForQuota) << wait.job_id;
    if (wait.job_id == "over") {
      EXPECT_THAT(wait.message, HasSubstr("the limit of queue limited, 4 GPUs"));
      EXPECT_NEAR(*wait.start_in_seconds, 1000, 1);
    }
    if (wait.job_id == "late") {
      EXPECT_THAT(wait.blocked_by, ElementsAre("over"));
    }
    if (wait.job_id == "never") {
      EXPECT_THAT(wait.message, HasSubstr("wants 5 GPUs, more than"));
    }
  }
}

TEST(Scheduling, SizesThatAreNotKnownKeepTheLimitOfTheirQueue) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("limited"), Queue("other")};
  s.snapshot.queues[0].limit_gpus = 4;
  s.Run("runs", 1, 1000).queue = "limited";
  for (const bool known : {false, true}) {
    s.snapshot.queue.clear();
    s.Wait("open", 0, 9000).queue = "limited";
    if (!known) s.snapshot.queue[0].size.reset();
    if (known) s.snapshot.queue[0].size->amount.gpus = 8;
    SchedulerDecisions decisions = s.Decide();
    ASSERT_THAT(Starts(decisions), ElementsAre("open")) << known;
    EXPECT_EQ(AmountOf(decisions.starts[0].plan).gpus, 2) << "of three, as a power of two";
    s.specs.back()->resources.min_ranks = 4;
    decisions = s.Decide();
    EXPECT_THAT(Starts(decisions), IsEmpty());
    EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
    EXPECT_NEAR(*decisions.waits[0].start_in_seconds, 1000, 1);
    s.specs.back()->resources.min_ranks = 5;
    EXPECT_THAT(s.Decide().waits[0].message, HasSubstr("wants 5 GPUs, more than"));
  }
  s.snapshot.queue.clear();
  s.Wait("fixed", 4, 9000).queue = "limited";
  s.snapshot.queue[0].size.reset();
  s.Wait("free", 4, 9999).queue = "other";
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("free")) << "a limit holds back its own queue alone";
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
  EXPECT_THAT(decisions.waits[0].message,
              HasSubstr("with 4 GPUs more: the limit of queue limited"));
}

TEST(Scheduling, WhatTheLimitLeavesMayBeTooFewForNow) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("limited")};
  s.snapshot.queues[0].limit_gpus = 4;
  s.Run("runs", 2, 1000).queue = "limited";
  s.Wait("open", 0, 9000).queue = "limited";
  const SchedulerDecisions decisions =
      Schedule(s.snapshot, [](const JobSpec& spec, const ClusterProfile& cluster) {
        if (spec.resources.max_ranks == 2) return Result<PlanReport>(ExhaustedError("too large"));
        return PlanGpus(spec, cluster);
      });
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
  EXPECT_FALSE(decisions.waits[0].infeasible) << "when others of its queue have ended it may fit";
}

TEST(Scheduling, QueuesShareByTheirWeights) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("heavy"), Queue("light")};
  s.snapshot.queues[0].weight = 3;
  for (int i = 0; i < 8; ++i) {
    s.Wait("l" + std::to_string(i), 1, 10).queue = "light";
    s.Wait("h" + std::to_string(i), 1, 1000).queue = "heavy";
  }
  int heavy = 0;
  for (const std::string& id : Starts(s.Decide())) heavy += id[0] == 'h';
  EXPECT_EQ(heavy, 6);
}

TEST(Scheduling, AnElasticJobStartsWithFewerRanksWhereThatEndsEarlier) {
  GpuSituation s(1);
  s.Run("runs", 4, 10000);
  s.Wait("elastic", 0, 1600);
  s.snapshot.rules.preempt_factor = 0;
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Starts(decisions), ElementsAre("elastic"));
  EXPECT_EQ(AmountOf(decisions.starts[0].plan).gpus, 4);
  // 400 s on four from now, or 200 s on eight in ten.
  s.snapshot.active[0].job.steps_left = 40;
  EXPECT_THAT(Starts(s.Decide()), IsEmpty());
}

TEST(Scheduling, ALargeElasticJobMakesRoomForAnother) {
  GpuSituation s(1);
  ActiveJob& running = s.Run("elastic", 8, 100000);
  s.specs.back()->resources.ranks = 0;
  s.Wait("fixed", 4, 1000);
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Victims(decisions), IsEmpty());
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].for_job, "fixed");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 4);
  EXPECT_EQ(decisions.resizes[0].change.why,
            "8 to 4 ranks: 0.5 times as fast by the plan, for job fixed");
  s.specs[0]->resources.min_ranks = 5;
  EXPECT_THAT(s.Decide().resizes, IsEmpty()) << "it may not have fewer than five";
  s.specs[0]->resources.min_ranks = 0;
  running.job.saved = false;
  EXPECT_THAT(s.Decide().resizes, IsEmpty()) << "it would lose all that it did";
}

TEST(Scheduling, AJobGrowsOnWhatNobodyElseCanUse) {
  GpuSituation s(2);
  s.Run("elastic", 4, 100000);
  s.specs.back()->resources.ranks = 0;
  SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(decisions.resizes[0].for_job, "");
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 16);
  s.snapshot.new_workers = {"m1"};
  decisions = s.Decide();
  ASSERT_EQ(decisions.resizes.size(), 1u);
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 8)
      << "the new machine has to stay first";
  s.snapshot.rules.scale_up.after_seconds = 0;
  EXPECT_THAT(s.Decide().resizes, IsEmpty());
}

TEST(Scheduling, GrowthKeepsTheLimitOfItsQueue) {
  GpuSituation s(2);
  s.snapshot.queues = {Queue("limited"), Queue("below")};
  s.snapshot.queues[0].limit_gpus = 7;
  s.snapshot.queues[1].parent = "limited";
  for (const char* id : {"one", "two"}) {
    s.Run(id, 2, 100000).queue = "below";
    s.specs.back()->resources.ranks = 0;
  }
  SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.resizes.size(), 1u) << "what the first takes is not there for the second";
  EXPECT_EQ(AmountOf(decisions.resizes[0].change.plan).gpus, 4);
  // While it stops, what it goes on with is taken.
  const Plan grown = decisions.resizes[0].change.plan;
  ActiveJob& stops = s.snapshot.active[decisions.resizes[0].job_id == "one" ? 0 : 1];
  stops.stopping = true;
  stops.next_plan = &grown;
  s.Wait("late", 2, 100).queue = "limited";
  decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
  s.specs.back()->resources.ranks = 1;
  s.snapshot.queue[0].size->amount.gpus = 1;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("late"));
}

TEST(Scheduling, SaysWhenJobsStartAndWhatWouldStartThemNow) {
  GpuSituation s(1);
  s.snapshot.rules.preempt_factor = 0;
  s.Run("runs", 6, 1000);
  s.Wait("first", 4, 100);
  s.Wait("second", 8, 100);
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.waits.size(), 2u);
  const WaitDecision& first = decisions.waits[0];
  EXPECT_EQ(first.position, 1);
  EXPECT_NEAR(*first.start_in_seconds, 1000, 1);
  EXPECT_NEAR(*first.earliest_start_in_seconds, 800, 1);
  EXPECT_NEAR(*first.latest_start_in_seconds, 1200, 1);
  EXPECT_EQ(decisions.waits[1].position, 2);
  EXPECT_NEAR(*decisions.waits[1].start_in_seconds, 1100, 1);
}

TEST(Scheduling, SaysWhatWouldStartAJobNow) {
  GpuSituation s(1);
  s.Run("runs", 6, 1000);
  s.Wait("wide", 4, 100);
  EXPECT_THAT(
      WouldStartNow(s.snapshot, PlanGpus),
      ElementsAre(HasSubstr("at most 2"), HasSubstr("priority of 1, which displaces runs")));
  s.snapshot.active[0].preemptible = false;
  EXPECT_THAT(WouldStartNow(s.snapshot, PlanGpus), ElementsAre(HasSubstr("at most 2")));
  const auto unknown = [](const JobSpec&, const ClusterProfile&) -> Result<PlanReport> {
    return UnavailableError("not known");
  };
  EXPECT_THAT(WouldStartNow(s.snapshot, unknown), IsEmpty());
  s.snapshot.queue.clear();
  s.Wait("narrow", 2, 100);
  EXPECT_THAT(WouldStartNow(s.snapshot, PlanGpus), ElementsAre(HasSubstr("its turn")));
  s.snapshot.rules.spare_workers = 1;
  s.snapshot.active.clear();
  s.snapshot.free = AllFree(s.snapshot.cluster);
  EXPECT_THAT(WouldStartNow(s.snapshot, PlanGpus), IsEmpty()) << "the only machine is a spare";
  s.snapshot.rules.spare_workers = 0;
  QueueSpec team = Queue("team");
  team.limit_gpus = 1;
  s.snapshot.queues = {team};
  s.snapshot.queue[0].queue = "team";
  EXPECT_THAT(WouldStartNow(s.snapshot, PlanGpus), IsEmpty()) << "the limit is in the way";
}

TEST(Scheduling, JobsThatAreHeldBackWaitAfterAllOthersAndHoldNobodyBack) {
  GpuSituation s(1);
  s.snapshot.rules.preempt_factor = 0;
  s.Wait("starts", 4, 100);
  s.Wait("waits", 8, 1000);
  s.snapshot.held = {{"dependent", "comes after job starts", {"starts"}}};
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("starts"));
  ASSERT_EQ(decisions.waits.size(), 2u);
  const WaitDecision& held = decisions.waits[1];
  EXPECT_EQ(held.job_id, "dependent");
  EXPECT_EQ(held.reason, Reason::kWaitingForJobs);
  EXPECT_EQ(held.message, "comes after job starts");
  EXPECT_EQ(held.position, 2);
  EXPECT_THAT(held.blocked_by, ElementsAre("starts"));
}

TEST(Scheduling, LearnsSizesForTheNextPass) {
  GpuSituation s(1);
  s.snapshot.rules.preempt_factor = 0;
  s.Run("runs", 8, 1000);
  s.Wait("unknown", 2, 100).size.reset();
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_EQ(decisions.sizes.size(), 1u);
  EXPECT_EQ(decisions.sizes[0].first, "unknown");
  EXPECT_EQ(decisions.sizes[0].second, (JobSize{{2, 0}, 0.5}));
}

TEST(Scheduling, ANewJobGetsTheFasterLinksAndOneThatRanStaysWhereItWas) {
  GpuSituation s(4);
  s.Wait("wide", 16, 1000);
  const auto first_worker = [&] {
    const SchedulerDecisions decisions = s.Decide();
    return decisions.starts.empty() ? "" : decisions.starts[0].plan.rank_workers.front();
  };
  EXPECT_EQ(first_worker(), "m0");
  s.snapshot.links = {{"m0", "m1", LinkLevel(1e8)}, {"m2", "m3", LinkLevel(1e9)}};
  EXPECT_EQ(first_worker(), "m2");
  const Plan last = *CapacityPool(s.snapshot.cluster, s.snapshot.free).Place(GpuPlan(16));
  s.snapshot.queue[0].last_plan = &last;
  EXPECT_EQ(first_worker(), "m0");
  // Where it was there is no room any more.
  s.snapshot.free.erase("m0");
  s.snapshot.links.push_back({"m1", "m2", LinkLevel(1e8)});
  EXPECT_EQ(first_worker(), "m2");
}

TEST(Scheduling, AsksForFewPlansHoweverManyJobsWait) {
  GpuSituation s(4);
  s.Run("runs", 25, 1000);
  for (int i = 0; i < 5000; ++i) {
    QueuedJob& job = s.Wait("j" + std::to_string(i), 1 + i % 16, 100 + i);
    if (i % 3 == 0) job.size.reset();
  }
  int plans = 0;
  const SchedulerDecisions decisions =
      Schedule(s.snapshot, [&](const JobSpec& spec, const ClusterProfile& cluster) {
        ++plans;
        return PlanGpus(spec, cluster);
      });
  EXPECT_LT(plans, 400);
  EXPECT_EQ(decisions.starts.size() + decisions.waits.size(), 5000u);
}

TEST(Scheduling, AJobStartsWhereWhatItWantsHasRoomInAnotherPlace) {
  CoreSituation s(3, 1);
  s.snapshot.cluster.workers[0].cores = 3;
  s.snapshot.free = AllFree(s.snapshot.cluster);
  s.snapshot.free.erase("m2");
  s.Wait("job", 100'000).resources.min_ranks = 2;
  // Three ranks on three machines are planned. They are also there on two.
  const auto one_each = [](const JobSpec&, const ClusterProfile& cluster) {
    Plan plan = CorePlan(std::ssize(cluster.workers));
    for (size_t i = 0; i < cluster.workers.size(); ++i) {
      plan.rank_workers[i] = cluster.workers[i].worker_id;
    }
    PlanReport report;
    report.candidates.push_back({plan, true, true, ""});
    return Result<PlanReport>(report);
  };
  const SchedulerDecisions decisions = Schedule(s.snapshot, one_each);
  ASSERT_THAT(Starts(decisions), ElementsAre("job"));
  EXPECT_EQ(decisions.starts[0].plan.rank_workers.size(), 3u);
}

}  // namespace
}  // namespace weft::coordinator
