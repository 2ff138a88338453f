#include "coordinator/scheduler/elastic_resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;

/// As many ranks of one thread as there are cores, up to resources.ranks; a step takes a second
/// over the `speed`-th power of that number.
PlanFunction Planner(double speed = 1) {
  return [speed](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
    Plan plan;
    plan.device = spec.resources.device;
    const bool devices = plan.device == "cuda";
    const int64_t limit = spec.resources.memory_per_rank_bytes;
    plan.prediction.memory_per_rank.parameters_bytes = limit > 0 ? limit : 10;
    for (const WorkerProfile& worker : cluster.workers) {
      const int64_t fit = devices ? std::ssize(worker.devices) : worker.cores;
      for (int64_t i = 0; i < fit; ++i) {
        plan.rank_workers.push_back(worker.worker_id);
        if (devices) plan.rank_devices.push_back(worker.devices[static_cast<size_t>(i)].index);
      }
    }
    if (int64_t most = spec.resources.ranks; most > 0 && most < std::ssize(plan.rank_workers)) {
      plan.rank_workers.resize(static_cast<size_t>(most));
    }
    plan.mesh.data = std::ssize(plan.rank_workers);
    plan.prediction.step_seconds = 1 / std::pow(static_cast<double>(plan.mesh.data), speed);
    PlanReport report;
    report.candidates.push_back({plan, true, true, ""});
    return report;
  };
}

/// A job that has trained 1000 s with all of worker "a", of two cores; "b" has two as well.
struct Situation {
  JobSpec spec;
  Plan plan;
  RunningJob job;
  ClusterProfile cluster;
  FreeMap free;
  ScaleUpRules rules;

  Situation() {
    Worker("a", 2);
    plan = *BestPlan(WithDevice(spec, nullptr, cluster), cluster, Planner());
    Worker("b", 2);
    job.attempt_seconds = 1000;
    job.steps_left = 1000;
    job.step_seconds = 0.5;
    job.start_seconds = 5;
    job.saved = true;
  }
  Situation(const Situation&) = delete;
  Situation& operator=(const Situation&) = delete;

  void Worker(const std::string& id, int64_t cores) {
    WorkerProfile profile;
    profile.worker_id = id;
    profile.cores = cores;
    profile.memory_limit_bytes = 1000;
    cluster.workers.push_back(profile);
    free[id] = {cores, 1000};
  }
  std::optional<PlanChange> Find(double speed = 1) {
    job.spec = &spec;
    job.plan = &plan;
    return FindScaleUp(job, cluster, free, rules, Planner(speed));
  }
};

TEST(Growth, AJobThatLeavesItsRanksToThePlannerTakesTheNewWorker) {
  Situation s;
  const std::optional<PlanChange> growth = s.Find();
  ASSERT_TRUE(growth);
  EXPECT_THAT(growth->plan.rank_workers, ElementsAre("a", "a", "b", "b"));
  EXPECT_EQ(growth->why, "2 to 4 ranks: 2.0 times as fast by the plan");
}

TEST(Growth, WhatOthersHoldIsNotFree) {
  Situation s;
  s.free.erase("b");
  EXPECT_FALSE(s.Find());
  s.free["b"] = {1, 1000};
  ASSERT_TRUE(s.Find());
  EXPECT_EQ(s.Find()->plan.rank_workers.size(), 3u);
}

TEST(Growth, ASmallGainIsNotWorthARestart) {
  Situation s;
  s.plan.prediction.step_seconds = std::pow(2, -0.2);
  EXPECT_FALSE(s.Find(0.2)) << "2^0.2 = 1.15 times as fast";
  s.plan.prediction.step_seconds = std::pow(2, -0.3);
  EXPECT_TRUE(s.Find(0.3)) << "1.23";
}

TEST(Growth, TheRestOfTheJobMustPayForTheRestart) {
  Situation s;
  // A restart takes 2 x 5 s; at twice the speed n steps of 0.5 s save n / 4 s.
  s.job.steps_left = 82;
  EXPECT_TRUE(s.Find()) << "20.25 s";
  s.job.steps_left = 80;
  EXPECT_FALSE(s.Find()) << "19.75 s";
  s.job.start_seconds.reset();
  s.job.steps_left = 960;
  EXPECT_FALSE(s.Find()) << "a start that was not seen takes a minute";
  s.job.steps_left = 970;
  EXPECT_TRUE(s.Find());
  s.job.steps_left = 0;
  EXPECT_FALSE(s.Find());
}

TEST(Growth, TheStepsUntilTheOuterStepRunByTheOldPlan) {
  Situation s;
  s.spec.train.local_steps = 50;
  s.job.steps_left = 130;
  EXPECT_TRUE(s.Find());
  s.job.steps_left = 129;
  EXPECT_FALSE(s.Find());
}

TEST(Growth, NotBeforeItHasRunForAWhileAndSaved) {
  Situation s;
  s.job.attempt_seconds = 119;
  EXPECT_FALSE(s.Find());
  s.job.attempt_seconds = 120;
  EXPECT_TRUE(s.Find());
  s.job.saved = false;
  EXPECT_FALSE(s.Find());
  s.job.saved = true;
  s.job.step_seconds = 0;
  EXPECT_FALSE(s.Find()) << "nothing is measured yet";
  s.job.step_seconds = 0.5;
  s.rules.after_seconds = 0;
  EXPECT_FALSE(s.Find()) << "growth is off";
}

AttemptRecord Ended(Reason reason, const Plan& plan = {}) {
  AttemptRecord attempt;
  attempt.ended_at = 1;
  attempt.reason = reason;
  attempt.plan = plan;
  return attempt;
}

TEST(Shrink, AJobOnCpusKeepsSomeOfItsCores) {
  Situation s;
  s.job.spec = &s.spec;
  s.job.plan = &s.plan;
  const std::optional<PlanChange> shrink = FindShrink(s.job, 1, s.cluster, Planner());
  ASSERT_TRUE(shrink);
  EXPECT_THAT(shrink->plan.rank_workers, ElementsAre("a"));
  EXPECT_EQ(shrink->why, "2 to 1 ranks: 0.5 times as fast by the plan");
  EXPECT_FALSE(FindShrink(s.job, 2, s.cluster, Planner())) << "it has no more";
  s.spec.resources.threads_per_rank = 2;
  EXPECT_FALSE(FindShrink(s.job, 1, s.cluster, Planner())) << "a rank needs two";
  s.spec.resources.threads_per_rank = 0;
  s.spec.resources.min_ranks = 2;
  EXPECT_FALSE(FindShrink(s.job, 1, s.cluster, Planner()));
}

TEST(Shrink, AJobForWhichSoFewCoresAreTooFewKeepsMore) {
  Situation s;
  s.cluster.workers.clear();
  s.Worker("c", 8);
  s.plan = *BestPlan(WithDevice(s.spec, nullptr, s.cluster), s.cluster, Planner());
  s.job.spec = &s.spec;
  s.job.plan = &s.plan;
  const auto shrink_when_needed = [&](int64_t cores) {
    return FindShrink(
        s.job, 1, s.cluster,
        [cores](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
          if (cluster.workers[0].cores < cores) return ExhaustedError("too large");
          return Planner()(spec, cluster);
        });
  };
  ASSERT_TRUE(shrink_when_needed(3));
  EXPECT_EQ(shrink_when_needed(3)->plan.rank_workers.size(), 4u);
  EXPECT_FALSE(shrink_when_needed(8)) << "it needs all that it has";
}

TEST(Growth, AWorkerThatComesAndGoesIsWaitedForLongerEachTime) {
  Situation s;
  for (double wait : {120.0, 240.0, 480.0, 960.0}) {
    s.job.attempt_seconds = wait - 1;
    EXPECT_FALSE(s.Find()) << wait;
    s.job.attempt_seconds = wait;
    EXPECT_TRUE(s.Find()) << wait;
    s.job.history.Add(Ended(Reason::kReplanned));
    s.job.history.Add(Ended(Reason::kWorkerLost));
  }
  for (int i = 0; i < 100; ++i) {
    s.job.history.Add(Ended(Reason::kReplanned));
    s.job.history.Add(Ended(Reason::kWorkerLost));
  }
  s.job.attempt_seconds = 120 * 64;
  s.job.steps_left = 1000000;
  EXPECT_TRUE(s.Find());
}

TEST(Growth, WorkersThatStayAreTakenOneAfterTheOther) {
  Situation s;
  for (int i = 0; i < 3; ++i) s.job.history.Add(Ended(Reason::kReplanned));
  s.job.attempt_seconds = 120;
  EXPECT_TRUE(s.Find());
  // A failure long after a growth that held is no reason against the next one.
  Situation other;
  other.job.history.Add(Ended(Reason::kWorkerLost));
  other.job.attempt_seconds = 120;
  EXPECT_TRUE(other.Find());
}

TEST(Growth, AJobThatSaysItsRanksGrowsBackButNotBeyond) {
  Situation s;
  s.spec.resources.ranks = 3;
  EXPECT_FALSE(s.Find()) << "all its ranks run";
  Plan first = s.plan;
  first.rank_workers.resize(3);
  s.job.history.Add(Ended(Reason::kWorkerLost, first));
  ASSERT_TRUE(s.Find());
  EXPECT_EQ(s.Find()->plan.rank_workers.size(), 3u);
}

TEST(Growth, ThreadsCountAsRanksDo) {
  Situation s;
  s.plan.rank_workers = {"a"};
  s.plan.threads_per_rank = 2;
  const PlanFunction wider = [](const JobSpec&, const ClusterProfile&) -> Result<PlanReport> {
    Plan plan;
    plan.rank_workers = {"b"};
    plan.threads_per_rank = 3;
    plan.prediction.step_seconds = 0.1;
    PlanReport report;
    report.candidates.push_back({plan, true, true, ""});
    return report;
  };
  s.free["b"].cores = s.cluster.workers[1].cores = 3;
  s.job.spec = &s.spec;
  s.job.plan = &s.plan;
  const auto growth = FindScaleUp(s.job, s.cluster, s.free, s.rules, wider);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->why, "2 to 3 threads a rank: 5.0 times as fast by the plan");
}

TEST(Growth, StaysOnTheKindOfDevice) {
  Situation s;
  for (WorkerProfile& worker : s.cluster.workers) {
    worker.device = "cuda";
    worker.devices.resize(1);
    s.free[worker.worker_id].devices = {0};
  }
  EXPECT_EQ(s.Find()->plan.device, "cpu");
  s.plan.device = "cuda";
  s.plan.rank_workers = {"a"};
  s.plan.rank_devices = {0};
  s.plan.prediction.step_seconds = 1;
  ASSERT_TRUE(s.Find());
  EXPECT_THAT(s.Find()->plan.rank_workers, ElementsAre("a", "b"));
  s.free["b"].devices.clear();
  EXPECT_FALSE(s.Find()) << "cores alone are no use";
}

TEST(Growth, RanksThatOnceRanOutOfMemoryGetNoMore) {
  Situation s;
  s.plan.prediction.memory_per_rank.parameters_bytes = 7;
  s.job.history.Add(Ended(Reason::kOutOfMemory));
  ASSERT_TRUE(s.Find());
  EXPECT_EQ(TotalBytes(s.Find()->plan.prediction.memory_per_rank), 7);
}

TEST(Growth, AJobThatItMadeSlowerGoesBack) {
  Situation s;
  BeforeScaleUp before{s.plan, 0.5};
  const Plan grown = s.Find()->plan;
  s.job.plan = &grown;
  auto back = [&] { return FindScaleBack(s.job, before, s.rules); };
  EXPECT_FALSE(back()) << "nothing is measured yet";
  s.job.step_seconds = s.job.median_step_seconds = 0.55;
  EXPECT_FALSE(back()) << "as good as the same";
  s.job.step_seconds = s.job.median_step_seconds = 0.7;
  ASSERT_TRUE(back());
  EXPECT_EQ(back()->plan.rank_workers, s.plan.rank_workers);
  EXPECT_EQ(back()->why, "4 to 2 ranks: 1.4 times as fast by what was measured");
  s.job.steps_left = 90;
  EXPECT_FALSE(back()) << "18 s, and a restart costs 10";
  s.job.steps_left = 1000;
  s.job.saved = false;
  EXPECT_FALSE(back());
  s.job.saved = true;
  before.median_step_seconds = 0;
  EXPECT_FALSE(back()) << "nobody knows how fast it was";
  before = {grown, 0.5};
  EXPECT_FALSE(back()) << "it did not get more";
  s.job.went_back = true;
  EXPECT_FALSE(s.Find()) << "once is enough";
}

}  // namespace
}  // namespace weft::coordinator
