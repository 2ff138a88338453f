// A job that takes long to plan is its own trouble: nothing else of the service waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/clock.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

/// A thousand blocks; each may be recomputed or not.
v1::JobSpec SlowToPlan(const Cluster& cluster) {
  v1::JobSpec spec = cluster.TinyJob("poison", 20, 0);
  spec.mutable_model()->set_layers(1024);
  spec.mutable_model()->set_width(64);
  spec.mutable_resources()->set_recompute("optimal");
  spec.mutable_resources()->set_micro_batch(0);
  spec.mutable_resources()->set_threads_per_rank(0);
  return spec;
}

/// It has a plan, or it says that there is none, or that finding one took too long.
bool IsDecided(const v1::Job& job) {
  if (job.attempt_count() > 0 || job.state() == v1::FAILED) return true;
  return job.reason() == v1::WAITING_FOR_WORKERS || job.reason() == v1::WAITING_FOR_CAPACITY ||
         (job.reason() == v1::PLANNING && job.message().find("took longer") != std::string::npos);
}

TEST(Planning, OfAJobThatTakesTooLongLeavesOthersAlone) {
  Cluster cluster({.workers = 2,
                   .cores = 1,
                   .lease_seconds = 5,
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}}});
  const std::string victim = cluster.Submit(cluster.TinyJob("victim", 100000, 1));
  cluster.AwaitStep(victim, 20);

  const auto submitted = steady_clock::now();
  const std::string poison = cluster.Submit(SlowToPlan(cluster));
  EXPECT_LT(SecondsSince(submitted), 2) << "the answer does not wait for the plan";

  // While the plan is looked for, every call is answered soon and the other job makes steps.
  int64_t step = cluster.Get(victim).progress().step();
  auto moved = steady_clock::now();
  double longest_pause = 0, longest_call = 0, decided_after = 0;
  while (SecondsSince(submitted) < 12) {
    const auto asked = steady_clock::now();
    const v1::Job job = cluster.Get(victim);
    longest_call = std::max(longest_call, SecondsSince(asked));
    ASSERT_EQ(v1::JobState_Name(job.state()), "RUNNING") << cluster.LogTails();
    ASSERT_EQ(job.attempts_size(), 1) << cluster.LogTails();
    if (job.progress().step() > step) {
      step = job.progress().step();
      moved = steady_clock::now();
    }
    longest_pause = std::max(longest_pause, SecondsSince(moved));
    if (decided_after == 0 && IsDecided(cluster.Get(poison))) {
      decided_after = SecondsSince(submitted);
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_LT(longest_call, 2);
  EXPECT_LT(longest_pause, 3);
  const v1::Job job = cluster.Get(poison);
  EXPECT_GT(decided_after, 0) << v1::Reason_Name(job.reason()) << ": " << job.message();
  EXPECT_LT(decided_after, 10) << v1::Reason_Name(job.reason()) << ": " << job.message();
  RecordProperty("decided_after_seconds", std::to_string(decided_after));

  // A coordinator that starts with this job in its queue has the same trouble with it and no other.
  cluster.coordinator().Kill();
  cluster.StartCoordinator();
  cluster.AwaitWorkers(2);
  step = cluster.AwaitStep(victim, step + 20).progress().step();  // it hears of steps again
  cluster.AwaitStep(victim, step + 20);

  // It is cancelled at once, and the way is free for the next.
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest request;
  request.set_id(poison);
  v1::Job cancelled;
  const auto asked = steady_clock::now();
  ASSERT_TRUE(cluster.api().CancelJob(&context, request, &cancelled).ok());
  EXPECT_LT(SecondsSince(asked), 3.0 * kPatience);
  cluster.Await(poison, v1::CANCELLED, seconds(20));
  cluster.Await(cluster.Submit(cluster.TinyJob("next", 5, 1)), v1::SUCCEEDED);
  EXPECT_EQ(cluster.Get(victim).attempts_size(), 1);
}

TEST(Planning, ThatOverrunsItsBudgetSaysSo) {
  Cluster cluster({.workers = 1,
                   .cores = 2,
                   .coordinator = {{"WEFT_COORDINATOR_PLAN_BUDGET_SECONDS", "0.05"},
                                   {"WEFT_FAILPOINTS", "coordinator.plan.before=sleep:1000"}}});
  const std::string poison = cluster.Submit(SlowToPlan(cluster));
  v1::Job job;
  ASSERT_TRUE(Eventually(
      [&] {
        job = cluster.Get(poison);
        return IsDecided(job);
      },
      seconds(10)))
      << v1::Reason_Name(job.reason()) << ": " << job.message();
  EXPECT_EQ(v1::JobState_Name(job.state()), "QUEUED");
  EXPECT_EQ(v1::Reason_Name(job.reason()), "PLANNING");
  EXPECT_THAT(job.message(), HasSubstr("took longer than the 0.05 s"));
}

}  // namespace
}  // namespace weft::testing
