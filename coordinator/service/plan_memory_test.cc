#include "coordinator/service/plan_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Jobs of one thread a rank have plans, of two threads have none, of more never come to an end.
class PlanMemoryTest : public testing::Test {
 protected:
  static JobSpec Job(int64_t threads) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.resources.threads_per_rank = threads;
    return spec;
  }
  static ClusterProfile Cluster(int64_t cores) {
    ClusterProfile cluster;
    cluster.workers.emplace_back().worker_id = "a";
    cluster.workers.back().cores = cores;
    return cluster;
  }
  Result<PlanReport> Plan(const JobSpec& spec, const std::stop_token& stop) {
    ++plans_;
    const int64_t threads = spec.resources.threads_per_rank;
    if (threads == 2) return ExhaustedError("too large");
    while (threads > 2 && !stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
    if (threads > 2) return AbortedError("stopped");
    PlanReport report;
    report.parameters = 7;
    return report;
  }

  Result<PlanReport> Find(const JobSpec& spec, int64_t cores, const std::string& owner = "") {
    return memory_.Find(spec, Cluster(cores), owner);
  }
  Result<PlanReport> Recall(const JobSpec& spec, int64_t cores) {
    return memory_.Recall(spec, Cluster(cores));
  }
  /// What a find says once the answer to the first one came.
  Result<PlanReport> Found(const JobSpec& spec, int64_t cores, const std::string& owner = "") {
    EXPECT_TRUE(HasNoAnswerYet(Find(spec, cores, owner).status()));
    AwaitChange();
    return Find(spec, cores, owner);
  }
  /// Does what is posted until there is an answer.
  void AwaitChange() {
    const size_t before = changes_.size();
    for (int i = 0; i < 5000 && changes_.size() == before; ++i) {
      DoPosted();
      if (changes_.size() == before) std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_GT(changes_.size(), before) << "no answer came";
  }
  void DoPosted() {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(posted_);
    }
    for (const auto& task : tasks) task();
  }
  void AwaitPlans(int count) {
    for (int i = 0; i < 5000 && plans_ < count; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_EQ(plans_, count);
  }
  void Pass(std::chrono::nanoseconds duration) {
    clock_.Advance(duration);
    pool_.Wake();
  }

  ManualClock clock_;
  std::atomic<int> plans_ = 0;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::vector<std::pair<std::chrono::nanoseconds, std::function<void()>>> timers_;
  std::vector<std::string> changes_;  ///< By owner.
  PlanningPool pool_{clock_, 2};
  PlanMemory memory_{
      clock_,
      pool_,
      [this](const JobSpec& spec, const ClusterProfile&, const std::stop_token& stop) {
        return Plan(spec, stop);
      },
      PlanningRules{},
      [this](std::function<void()> task) {
        const std::lock_guard lock(mutex_);
        posted_.push_back(std::move(task));
      },
      [this](auto delay, std::function<void()> task) { timers_.emplace_back(delay, task); },
      [this](const std::string& owner) { changes_.push_back(owner); }};

  void TearDown() override { pool_.Stop(); }
};

TEST_F(PlanMemoryTest, RecallsWhatIsKnownAndAsksForNothing) {
  EXPECT_TRUE(HasNoAnswerYet(Recall(Job(1), 4).status()));
  EXPECT_EQ(plans_, 0);
  ASSERT_TRUE(Found(Job(1), 4).ok());
  EXPECT_EQ(Recall(Job(1), 4)->parameters, 7);
  EXPECT_TRUE(HasNoAnswerYet(Recall(Job(1), 5).status()));
  EXPECT_TRUE(HasNoAnswerYet(Recall(Job(2), 4).status()));
  EXPECT_EQ(plans_, 1);
}

TEST_F(PlanMemoryTest, AnAnswerIsRememberedUntilTheJobOrTheClusterChanges) {
  ASSERT_TRUE(Found(Job(1), 4).ok());
  EXPECT_EQ(Find(Job(1), 4)->parameters, 7);
  JobSpec alike = Job(1);
  alike.name = "other";
  alike.data.train = {"/data/b"};
  EXPECT_TRUE(Find(alike, 4).ok()) << "plans depend on neither";
  EXPECT_EQ(plans_, 1);
  JobSpec other = Job(1);
  other.resources.memory_per_rank_bytes = 1;
  EXPECT_TRUE(Found(other, 4).ok());
  EXPECT_TRUE(Found(Job(1), 5).ok());
  EXPECT_EQ(plans_, 3);
  EXPECT_TRUE(Find(Job(1), 4).ok()) << "the machines that were there before";
  EXPECT_EQ(plans_, 3);
}

TEST_F(PlanMemoryTest, AThousandJobsThatFitNowhereArePlannedOnce) {
  EXPECT_THAT(Found(Job(2), 4).status().message(), HasSubstr("too large"));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(Find(Job(2), 4).status().code(), StatusCode::kExhausted);
  }
  EXPECT_EQ(plans_, 1);
}

TEST_F(PlanMemoryTest, WhatIsAskedForManyTimesIsLookedForOnce) {
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(HasNoAnswerYet(Find(Job(1), 4).status()));
  AwaitChange();
  EXPECT_TRUE(Find(Job(1), 4).ok());
  EXPECT_EQ(plans_, 1);
}

// Each job that runs has a part of the cluster of its own, to grow in.
TEST_F(PlanMemoryTest, ManyClustersMayBeAskedForAtOnce) {
  constexpr int kJobs = 60;
  const auto ask = [&](int job) { return Find(Job(1), 100 + job, "job " + std::to_string(job)); };
  for (int job = 0; job < kJobs; ++job) EXPECT_TRUE(HasNoAnswerYet(ask(job).status()));
  for (int i = 0; i < 5000 && changes_.size() < kJobs; ++i) {
    DoPosted();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(std::set<std::string>(changes_.begin(), changes_.end()).size(), size_t{kJobs});
  for (int job = 0; job < kJobs; ++job) EXPECT_TRUE(ask(job).ok()) << job;
  EXPECT_EQ(plans_, kJobs);
}

TEST_F(PlanMemoryTest, WhatAPassDoesNotAskForAnyMoreIsGivenUp) {
  memory_.BeginPass();
  EXPECT_FALSE(Find(Job(3), 4).ok());
  memory_.EndPass();
  AwaitPlans(1);
  memory_.BeginPass();
  EXPECT_FALSE(Find(Job(3), 4).ok());
  memory_.EndPass();
  EXPECT_EQ(plans_, 1) << "still wanted";
  EXPECT_FALSE(Find(Job(4), 4, "a job that runs").ok());
  AwaitPlans(2);
  memory_.BeginPass();
  memory_.EndPass();
  // Its thread is free, while the other one goes on.
  EXPECT_TRUE(Found(Job(1), 4).ok());
  EXPECT_TRUE(Found(Job(1), 5).ok());
  memory_.Forget("a job that runs");
  EXPECT_TRUE(timers_.empty()) << "neither took too long";
}

TEST_F(PlanMemoryTest, APlanThatTakesTooLongIsTriedAgainAfterPausesThatGrow) {
  std::chrono::nanoseconds pause = minutes(1);
  for (int times = 1; times <= 3; ++times) {
    EXPECT_THAT(Find(Job(3), 4).status().message(), HasSubstr("being looked for"));
    AwaitPlans(times);
    Pass(seconds(8));
    AwaitChange();
    EXPECT_THAT(Find(Job(3), 4).status().message(), HasSubstr("longer than the 8 s"));
    EXPECT_TRUE(WasGivenUp(Find(Job(3), 4).status()));
    EXPECT_THAT(Find(Job(3), 9).status().message(), HasSubstr("longer than the 8 s"))
        << "of other machines, too: they change all the time";
    ASSERT_EQ(timers_.size(), static_cast<size_t>(times));
    EXPECT_EQ(timers_.back().first, pause);
    EXPECT_TRUE(HasNoAnswerYet(Find(Job(1), 10 + times).status()));
    AwaitChange();
    EXPECT_TRUE(Find(Job(1), 10 + times).ok()) << "other jobs are planned as ever";
    --plans_;
    Pass(pause);
    pause *= 2;
    timers_.back().second();
    EXPECT_EQ(changes_.back(), "");
  }
}

}  // namespace
}  // namespace weft::coordinator
