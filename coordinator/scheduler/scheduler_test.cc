#include "coordinator/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A planner that wants resources.ranks ranks of resources.threads_per_rank threads and 10 bytes,
/// or what resources.memory_per_rank_bytes allows, and a GPU each where the job wants them.
Result<PlanReport> SimplePlan(const JobSpec& spec, const ClusterProfile& cluster) {
  Plan plan;
  plan.threads_per_rank = std::max<int64_t>(1, spec.resources.threads_per_rank);
  plan.mesh.data = std::max<int64_t>(1, spec.resources.ranks);
  plan.device = spec.resources.device;
  plan.precision = spec.train.precision;
  const int64_t limit = spec.resources.memory_per_rank_bytes;
  plan.prediction.memory_per_rank.parameters_bytes = limit > 0 ? limit : 10;
  plan.prediction.step_seconds = 1 / static_cast<double>(plan.mesh.data);
  if (limit > 0 && limit < 5) return ExhaustedError("5 bytes are the least");
  const bool devices = plan.device == "cuda";
  for (const WorkerProfile& worker : cluster.workers) {
    int64_t fit = std::min(worker.cores / plan.threads_per_rank,
                           devices ? std::ssize(worker.devices) : worker.memory_limit_bytes / 10);
    for (int64_t i = 0; i < fit; ++i) {
      if (std::ssize(plan.rank_workers) < plan.mesh.data) {
        plan.rank_workers.push_back(worker.worker_id);
        if (devices) plan.rank_devices.push_back(worker.devices[static_cast<size_t>(i)].index);
      }
    }
  }
  PlanReport report;
  bool fits = std::ssize(plan.rank_workers) == plan.mesh.data;
  report.candidates.push_back({plan, fits, fits, fits ? "" : "needs more cores than there are"});
  return report;
}

struct Situation {
  SchedulerSnapshot snapshot;
  std::vector<std::unique_ptr<JobSpec>> specs;

  Situation& Worker(const std::string& id, int64_t cores, int64_t free_cores) {
    WorkerProfile profile;
    profile.worker_id = id;
    profile.cores = cores;
    profile.memory_limit_bytes = 1000;
    snapshot.cluster.workers.push_back(profile);
    if (free_cores > 0) snapshot.free[id] = {free_cores, 1000};
    return *this;
  }
  /// The worker added last gets GPUs of 100 bytes; those in `working` are free.
  Situation& Gpus(int count, const std::set<int64_t>& working) {
    WorkerProfile& worker = snapshot.cluster.workers.back();
    worker.device = "cuda";
    for (int index = 0; index < count; ++index) {
      DeviceSpec device;
      device.index = index;
      device.memory_limit_bytes = 100;
      if (!working.contains(index)) device.unusable = "XID 79";
      worker.devices.push_back(device);
    }
    snapshot.free[worker.worker_id].devices = working;
    return *this;
  }
  Situation& Job(const std::string& id, int64_t ranks, int64_t threads,
                 const Plan* last = nullptr) {
    specs.push_back(std::make_unique<JobSpec>());
    specs.back()->resources.ranks = ranks;
    specs.back()->resources.threads_per_rank = threads;
    snapshot.queue.push_back({id, specs.back().get(), last});
    return *this;
  }
  SchedulerDecisions Run() const { return Schedule(snapshot, SimplePlan); }
};

TEST(Scheduler, StartsAllRanksOfAJobOrNone) {
  Situation s;
  s.Worker("a", 2, 2).Worker("b", 2, 1).Job("j", 4, 1);
  auto decisions = s.Run();
  EXPECT_TRUE(decisions.starts.empty());
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForCapacity);
  s.snapshot.free["b"] = {2, 1000};
  decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("a", "a", "b", "b"));
}

TEST(Scheduler, SaysWhyEachJobWaits) {
  Situation s;
  s.Worker("a", 2, 0).Job("huge", 99, 1).Job("next", 2, 1).Job("behind", 1, 1);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.waits.size(), 3u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForWorkers);
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("needs more cores"));
  EXPECT_EQ(decisions.waits[1].reason, Reason::kWaitingForCapacity);
  EXPECT_THAT(decisions.waits[2].message, HasSubstr("behind job next"));
  EXPECT_THAT(Situation().Job("alone", 1, 1).Run().waits[0].message,
              HasSubstr("no worker is attached"));
}

TEST(Scheduler, AJobThatNoWorkerCanRunHoldsNobodyBack) {
  Situation s;
  s.Worker("a", 2, 2).Job("huge", 99, 1).Job("small", 1, 2);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].job_id, "small");
}

TEST(Scheduler, AFirstJobIsNotOvertakenByASmallerOne) {
  Situation s;
  s.Worker("a", 4, 1).Job("wide", 4, 1).Job("small", 1, 1);
  EXPECT_TRUE(s.Run().starts.empty());
}

TEST(Scheduler, ARestartKeepsMeshAndThreadsOnAnotherWorker) {
  Plan last;
  last.mesh.data = 2;
  last.threads_per_rank = 1;
  last.micro_batch = 7;
  last.rank_workers = {"gone", "a"};
  Situation s;
  s.Worker("a", 1, 1).Worker("b", 4, 4).Job("j", 0, 4, &last);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.micro_batch, 7);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("b", "b"));
}

TEST(Scheduler, ARestartIsPlannedAnewWhenTheOldPlanFitsNowhere) {
  Plan last;
  last.mesh.data = 2;
  last.threads_per_rank = 8;
  last.rank_workers = {"a", "gone"};
  Situation s;
  s.Worker("a", 8, 8).Job("j", 1, 8, &last);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.mesh.data, 1);
}

TEST(Scheduler, EachRankOfAPipelineTakesItsOwnMemory) {
  Plan last;
  last.mesh.data = 2;
  last.mesh.pipeline = 2;
  last.stage_blocks = {9, 3};
  last.prediction.memory_per_rank.parameters_bytes = 700;
  last.prediction.stage_bytes = {700, 200};
  last.rank_workers = {"a", "b", "c", "c"};
  Situation s;
  s.Worker("a", 1, 1).Worker("b", 1, 1).Worker("c", 4, 4);
  EXPECT_TRUE(Fits(last, s.snapshot.free));
  TakeCapacity(last, s.snapshot.free);
  EXPECT_EQ(s.snapshot.free["c"].memory_bytes, 600);
  last.prediction.stage_bytes = {700, 700};
  Situation anew;
  anew.Worker("a", 1, 1).Worker("b", 1, 1).Worker("c", 4, 4);
  EXPECT_FALSE(Fits(last, anew.snapshot.free));
}

TEST(Scheduler, ARankOnAGpuTakesOfItsWorkerWhatItOffloads) {
  Plan last;
  last.device = "cuda";
  last.offload_optimizer = "host";
  last.prediction.memory_per_rank.parameters_bytes = 600;
  last.prediction.stage_bytes = {200};  // on the GPU
  last.rank_workers = {"g"};
  last.rank_devices = {1};
  Situation s;
  s.Worker("g", 8, 8).Gpus(2, {0, 1});
  s.snapshot.free["g"].memory_bytes = 700;
  EXPECT_TRUE(Fits(last, s.snapshot.free));
  TakeCapacity(last, s.snapshot.free);
  EXPECT_EQ(s.snapshot.free["g"].memory_bytes, 300);
  last.rank_devices = {0};
  EXPECT_FALSE(Fits(last, s.snapshot.free)) << "there is a GPU, and no memory";
  last.offload_optimizer = "none";
  EXPECT_TRUE(Fits(last, s.snapshot.free));
}

TEST(Scheduler, TwoRanksGetTwoGpus) {
  Situation s;
  s.Worker("c", 8, 8).Worker("g", 8, 8).Gpus(2, {0, 1}).Job("two", 2, 1).Job("third", 1, 1);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.device, "cuda");
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("g", "g"));
  EXPECT_THAT(decisions.starts[0].plan.rank_devices, ElementsAre(0, 1));
  // The third waits for a GPU, though cores are free here and on the other worker.
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForCapacity);
  EXPECT_THAT(decisions.waits[0].message, HasSubstr("a GPU"));
}

TEST(Scheduler, ABrokenGpuIsLeftOut) {
  Situation s;
  s.Worker("g", 8, 8).Gpus(3, {0, 2}).Job("two", 2, 1).Job("three", 3, 1);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_devices, ElementsAre(0, 2));
}

TEST(Scheduler, ARestartMovesToGpusThatWork) {
  Plan last;
  last.device = "cuda";
  last.mesh.data = 2;
  last.micro_batch = 7;
  last.rank_workers = {"a", "a"};
  last.rank_devices = {0, 1};
  last.prediction.memory_per_rank.activations_bytes = 90;
  Situation s;
  s.Worker("a", 8, 8).Gpus(2, {1}).Worker("b", 8, 8).Gpus(4, {1, 3}).Job("j", 0, 1, &last);
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.micro_batch, 7);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("b", "b"));
  EXPECT_THAT(decisions.starts[0].plan.rank_devices, ElementsAre(1, 3));
  // A job that ran on GPUs does not go to a processor because all are broken.
  Situation none;
  none.Worker("a", 8, 8).Gpus(2, {}).Job("j", 1, 1, &last);
  EXPECT_TRUE(none.Run().starts.empty());
}

TEST(Scheduler, ARestartKeepsThePrecisionThatWasChosen) {
  Plan last;
  last.precision = "fp16";
  last.rank_workers = {"a"};
  last.prediction.memory_per_rank.parameters_bytes = 100;
  Situation s;
  s.Worker("a", 8, 8).Job("j", 1, 1, &last);
  s.specs.back()->train.precision = "auto";
  // With which it has no room any more, so that it is planned anew.
  s.snapshot.queue.back().out_of_memory = true;
  const auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.prediction.memory_per_rank.parameters_bytes, 85);
  EXPECT_EQ(decisions.starts[0].plan.precision, "fp16");
}

TEST(Scheduler, GpusThatRanksHoldAreTaken) {
  Plan held;
  held.device = "cuda";
  held.threads_per_rank = 2;
  held.rank_workers = {"g"};
  held.rank_devices = {1};
  std::map<std::string, FreeCapacity> free;
  free["g"] = {8, 1000, {0, 1}};
  TakeCapacity(held, free);
  EXPECT_EQ(free["g"].cores, 6);
  EXPECT_EQ(free["g"].memory_bytes, 1000);
  EXPECT_THAT(free["g"].devices, ElementsAre(0));
}

TEST(Scheduler, AJobThatRanOutOfMemoryIsPlannedWithLess) {
  Plan last;
  last.mesh.data = 1;
  last.rank_workers = {"a"};
  last.prediction.memory_per_rank.activations_bytes = 100;
  Situation s;
  s.Worker("a", 2, 2).Job("j", 1, 1, &last);
  s.snapshot.queue[0].out_of_memory = true;
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(TotalBytes(decisions.starts[0].plan.prediction.memory_per_rank), 85);
  // Where nothing smaller fits, the same may pass once more.
  last.prediction.memory_per_rank.activations_bytes = 4;
  decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(TotalBytes(decisions.starts[0].plan.prediction.memory_per_rank), 4);
}

TEST(Scheduler, AJobStoppedForABetterPlanGetsItOrTheBestThatIsFaster) {
  Plan last;
  last.mesh.data = 1;
  last.rank_workers = {"a"};
  last.prediction.step_seconds = 1;
  Plan next = last;
  next.mesh.data = 2;
  next.rank_workers = {"a", "b"};
  next.prediction.step_seconds = 0.6;
  Situation s;
  s.Worker("a", 1, 1).Worker("b", 1, 1).Worker("c", 1, 1).Job("j", 3, 1, &last);
  QueuedJob& job = s.snapshot.queue[0];
  job.replanned = true;
  job.next_plan = &next;
  auto decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("a", "b"));
  // The coordinator was restarted, and does not know what it had in mind.
  job.next_plan = nullptr;
  decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("a", "b", "c"));
  // One that is no faster than the last is no reason to leave that.
  last.prediction.step_seconds = 1e-9;
  decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("a"));
  // The new worker has gone again.
  job.next_plan = &next;
  last.prediction.step_seconds = 1;
  s.snapshot.free.erase("b");
  s.snapshot.free.erase("c");
  decisions = s.Run();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].plan.rank_workers, ElementsAre("a"));
}

TEST(Scheduler, CoresThatTheLimitOfAQueueLeavesBoundASizeThatIsOpen) {
  // As many ranks of a core as there are.
  const PlanFunction all = [](const JobSpec& spec, const ClusterProfile& cluster) {
    JobSpec fixed = spec;
    fixed.resources.threads_per_rank = 1;
    fixed.resources.ranks = AmountOf(cluster).cores;
    return SimplePlan(fixed, cluster);
  };
  Situation s;
  s.Worker("a", 4, 4).Worker("b", 4, 4).Job("open", 0, 0);
  s.snapshot.queues.emplace_back().name = kDefaultQueue;
  s.snapshot.queues[0].limit_cores = 6;
  SchedulerDecisions decisions = Schedule(s.snapshot, all);
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(AmountOf(decisions.starts[0].plan).cores, 6);
  s.Job("late", 0, 0);
  decisions = Schedule(s.snapshot, all);
  ASSERT_EQ(decisions.starts.size(), 2u);
  EXPECT_EQ(AmountOf(decisions.starts[0].plan).cores, 4) << "its share";
  EXPECT_EQ(AmountOf(decisions.starts[1].plan).cores, 2) << "what the limit leaves";
  s.Job("last", 0, 0);
  decisions = Schedule(s.snapshot, all);
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
}

TEST(Scheduler, NeverGivesMoreThanIsFree) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    Situation s;
    std::map<std::string, FreeCapacity> left;
    int workers = static_cast<int>(random() % 4);
    for (int w = 0; w < workers; ++w) {
      int64_t cores = 1 + static_cast<int64_t>(random() % 4);
      s.Worker(std::string(1, static_cast<char>('a' + w)), cores,
               static_cast<int64_t>(random() % (static_cast<unsigned>(cores) + 1)));
    }
    for (int j = 0; j < 5; ++j) s.Job("j" + std::to_string(j), 1 + random() % 4, 1 + random() % 3);
    left = s.snapshot.free;
    auto decisions = s.Run();
    EXPECT_EQ(decisions.starts.size() + decisions.waits.size(), 5u);
    for (const StartDecision& start : decisions.starts) {
      EXPECT_EQ(std::ssize(start.plan.rank_workers), RankCount(start.plan.mesh));
      for (const std::string& worker : start.plan.rank_workers) {
        left[worker].cores -= start.plan.threads_per_rank;
        EXPECT_GE(left[worker].cores, 0);
      }
    }
  }
}

/// As SimplePlan, but it has no answer yet for jobs of this many ranks, on the cores that are
/// given.
PlanFunction Unknown(int64_t ranks, int64_t cores) {
  return [=](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
    int64_t offered = 0;
    for (const WorkerProfile& worker : cluster.workers) offered += worker.cores;
    if (spec.resources.ranks == ranks && offered == cores) {
      return UnavailableError("being looked for");
    }
    return SimplePlan(spec, cluster);
  };
}

TEST(Scheduler, AJobWhosePlanIsNotKnownHoldsBackOthersUntilItTakesLong) {
  Situation s;
  s.Worker("a", 4, 4).Job("first", 2, 1).Job("second", 1, 1);
  SchedulerDecisions held = Schedule(s.snapshot, Unknown(2, 4));
  EXPECT_TRUE(held.starts.empty());
  ASSERT_EQ(held.waits.size(), 2u);
  EXPECT_EQ(held.waits[0].reason, Reason::kPlanning);
  EXPECT_EQ(held.waits[0].message, "being looked for");
  EXPECT_THAT(held.waits[1].message, HasSubstr("waits behind job first"));
  s.snapshot.queue[0].planned_long = true;
  SchedulerDecisions passed = Schedule(s.snapshot, Unknown(2, 4));
  ASSERT_EQ(passed.starts.size(), 1u);
  EXPECT_EQ(passed.starts[0].job_id, "second");
}

TEST(Scheduler, AJobThatIsPlannedLongTakesThePlanForTheWholeCluster) {
  // What is free changes all the time, the cluster does not.
  Situation s;
  s.Worker("a", 8, 4).Job("slow", 2, 1);
  EXPECT_TRUE(Schedule(s.snapshot, Unknown(2, 4)).starts.empty());
  s.snapshot.queue[0].planned_long = true;
  EXPECT_EQ(Schedule(s.snapshot, Unknown(2, 4)).starts.size(), 1u);
}

TEST(Scheduler, AJobWhosePlanWasGivenUpHoldsBackNobodyAndIsNotPlannedUntilItsPauseIsOver) {
  Situation s;
  s.Worker("a", 4, 4).Job("slow", 2, 1).Job("small", 1, 1);
  int asked = 0;
  const PlanFunction plan = [&](const JobSpec& spec,
                                const ClusterProfile& cluster) -> Result<PlanReport> {
    if (spec.resources.ranks != 2) return SimplePlan(spec, cluster);
    ++asked;
    return AbortedError("it took too long");
  };
  const SchedulerDecisions first = Schedule(s.snapshot, plan);
  ASSERT_EQ(first.starts.size(), 1u);
  EXPECT_EQ(first.starts[0].job_id, "small");
  ASSERT_EQ(first.waits.size(), 1u);
  EXPECT_EQ(first.waits[0].reason, Reason::kPlanning);
  EXPECT_TRUE(first.waits[0].given_up);
  EXPECT_GT(asked, 0);
  asked = 0;
  s.snapshot.queue[0].given_up_reason = &first.waits[0].message;
  const SchedulerDecisions again = Schedule(s.snapshot, plan);
  EXPECT_EQ(again.starts.size(), 1u);
  ASSERT_EQ(again.waits.size(), 1u);
  EXPECT_EQ(again.waits[0].reason, Reason::kPlanning);
  EXPECT_EQ(again.waits[0].message, "it took too long");
  EXPECT_FALSE(again.waits[0].given_up) << "the pause does not begin anew";
  EXPECT_EQ(asked, 0);
}

TEST(Scheduler, AJobWhosePlanForWhatIsFreeWasGivenUpTakesThatForTheWholeCluster) {
  const PlanFunction plan = [](const JobSpec& spec,
                               const ClusterProfile& cluster) -> Result<PlanReport> {
    if (cluster.workers[0].cores != 8) return AbortedError("it took too long");
    return SimplePlan(spec, cluster);
  };
  Situation s;
  s.Worker("a", 8, 4).Job("slow", 2, 1);
  EXPECT_EQ(Schedule(s.snapshot, plan).starts.size(), 1u);
  // Without room for it, it is the first to get some.
  Situation full;
  full.Worker("a", 8, 1).Job("slow", 2, 1).Job("small", 1, 1);
  const SchedulerDecisions held = Schedule(full.snapshot, plan);
  EXPECT_TRUE(held.starts.empty());
  ASSERT_EQ(held.waits.size(), 2u);
  EXPECT_EQ(held.waits[0].reason, Reason::kWaitingForCapacity);
  EXPECT_THAT(held.waits[1].message, HasSubstr("waits behind job slow"));
}

TEST(Scheduler, OfManyJobsThatAreHardToPlanTheFirstAndTheLastArePlannedAndAllShareAWhile) {
  constexpr size_t kJobs = 300;
  Situation s;
  s.Worker("a", 4, 4);
  for (size_t i = 0; i < kJobs; ++i) s.Job("slow" + std::to_string(i), 2, 1);
  s.Job("small", 1, 1);
  int asked = 0;
  const PlanFunction plan = [&](const JobSpec& spec,
                                const ClusterProfile& cluster) -> Result<PlanReport> {
    ++asked;
    if (spec.resources.ranks == 2) return UnavailableError("being looked for");
    return SimplePlan(spec, cluster);
  };
  const SchedulerDecisions held = Schedule(s.snapshot, plan);
  EXPECT_TRUE(held.starts.empty());
  ASSERT_EQ(held.waits.size(), kJobs + 1);
  for (const WaitDecision& wait : held.waits) EXPECT_TRUE(wait.for_planning) << wait.job_id;

  for (QueuedJob& job : s.snapshot.queue) job.planned_long = true;
  asked = 0;
  const SchedulerDecisions passed = Schedule(s.snapshot, plan);
  ASSERT_EQ(passed.starts.size(), 1u);
  EXPECT_EQ(passed.starts[0].job_id, "small");
  EXPECT_LT(asked, 400);
  ASSERT_EQ(passed.waits.size(), kJobs);
  for (const WaitDecision& wait : passed.waits) EXPECT_EQ(wait.reason, Reason::kPlanning);

  // One that came later has a while of its own, though it is not planned yet.
  s.snapshot.queue[kJobs / 2].planned_long = false;
  EXPECT_TRUE(Schedule(s.snapshot, plan).starts.empty());
}

TEST(Scheduler, AJobThatIsKnownToFitNowhereIsNotPlannedAgain) {
  Situation s;
  s.Worker("a", 4, 4).Job("large", 9, 1).Job("small", 1, 1);
  SchedulerDecisions first = Schedule(s.snapshot, SimplePlan);
  ASSERT_EQ(first.waits.size(), 1u);
  EXPECT_TRUE(first.waits[0].infeasible);
  s.snapshot.queue[0].infeasible_reason = &first.waits[0].message;
  SchedulerDecisions again = Schedule(
      s.snapshot, [](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
        EXPECT_NE(spec.resources.ranks, 9);
        return SimplePlan(spec, cluster);
      });
  ASSERT_EQ(again.starts.size(), 1u);
  EXPECT_EQ(again.waits[0].message, first.waits[0].message);
}

}  // namespace
}  // namespace weft::coordinator
