// Numbers that are wrong on one rank: all ranks do the same about it, and its machine is named.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

/// Workers with a rank each.
class ChaosOfNumbers : public ::testing::Test {
 protected:
  explicit ChaosOfNumbers(int workers = 2)
      : workers_(workers), cluster_({.workers = workers, .cores = 1}) {}

  /// Ranks on that worker fail from now on as `failpoints` says.
  void Spoil(int worker, const std::string& failpoints) {
    cluster_.worker(worker).Signal(SIGTERM);
    ASSERT_TRUE(cluster_.worker(worker).WaitForEnd(seconds(20))) << cluster_.LogTails();
    cluster_.StartWorker(worker, {{"WEFT_FAILPOINTS", failpoints}});
    cluster_.AwaitWorkers(workers_);
  }
  /// A job that goes back to its checkpoint after each update that is dropped.
  v1::JobSpec GuardedJob(const std::string& name, int64_t most_rollbacks) const {
    v1::JobSpec spec = cluster_.TinyJob(name, kSteps);
    v1::GuardSpec& guard = *spec.mutable_train()->mutable_guard();
    guard.set_skips_before_rollback(1);
    guard.set_max_rollbacks(most_rollbacks);
    // One checkpoint before the update that is dropped: a second one is left out while the first is
    // still being written, and where a job goes back to would hang on the disk.
    spec.mutable_checkpoint()->set_every_steps(10);
    return spec;
  }
  /// Lines of its log that say that it went back.
  int64_t RollbacksLogged(const std::string& id) {
    int64_t count = 0;
    for (const v1::LogLine& line : cluster_.Logs(id, true)) {
      count += line.text().starts_with("warning: went back from step");
    }
    return count;
  }
  /// Events of the job that say so.
  int64_t RollbackEvents(const std::string& id) {
    grpc::ClientContext context;
    v1::ListEventsRequest request;
    request.set_job_id(id);
    v1::ListEventsResponse response;
    EXPECT_TRUE(cluster_.api().ListEvents(&context, request, &response).ok());
    return std::count_if(response.events().begin(), response.events().end(),
                         [](const v1::JobEvent& event) { return event.kind() == "rollback"; });
  }
  double SuspicionOf(const std::string& worker) {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(cluster_.api().ListWorkers(&context, {}, &response).ok());
    for (const v1::Worker& one : response.workers()) {
      if (one.profile().worker_id() == worker) return one.suspicion();
    }
    ADD_FAILURE() << worker << " is not there";
    return 0;
  }

  const int workers_;
  Cluster cluster_;
};

/// Of three ranks, one that computes wrong for good has two witnesses.
class ChaosOfNumbersOnThreeMachines : public ChaosOfNumbers {
 protected:
  ChaosOfNumbersOnThreeMachines() : ChaosOfNumbers(3) {}
};

TEST_F(ChaosOfNumbers, ALossThatIsNotFiniteOnOneRankSendsAllBackWithinTheirBudget) {
  // The loss of the 13th step of the second rank alone, then that of both ranks: what follows is
  // the same bit for bit, or else the first rank would have made the update.
  Spoil(1, "trainer.loss=error@13");
  const std::string one = cluster_.Submit(GuardedJob("one-rank", 2));
  const v1::Job job = cluster_.Await(one, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 1);
  ASSERT_EQ(job.attempts(0).plan().rank_workers(1), "worker-1") << "not the first rank";
  EXPECT_EQ(job.progress().step(), kSteps);
  EXPECT_EQ(job.progress().skipped_steps(), 1);
  EXPECT_EQ(job.progress().rollbacks(), 1);
  EXPECT_EQ(RollbacksLogged(one), 1);
  EXPECT_EQ(RollbackEvents(one), 1);
  Spoil(0, "trainer.loss=error@13");
  const std::string both = cluster_.Submit(GuardedJob("both-ranks", 2));
  cluster_.Await(both, v1::SUCCEEDED);
  EXPECT_EQ(cluster_.LossCurve(one), cluster_.LossCurve(both));

  Spoil(1, "trainer.loss=error");
  const std::string never = cluster_.Submit(GuardedJob("no-budget-left", 1));
  const v1::Job failed = cluster_.Await(never, v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(failed.reason()), "NUMERICS");
  EXPECT_EQ(failed.attempts_size(), 1);
  EXPECT_THAT(failed.message(), HasSubstr("after 1 of 1 rollbacks"));
  EXPECT_EQ(RollbacksLogged(never), 1);
}

TEST_F(ChaosOfNumbersOnThreeMachines, AWrongBitIsFoundAtTheNextReplayAndItsMachineSuspected) {
  // A check each four steps. From the first step on one rank adds gradients to those of the others
  // that have a wrong bit.
  constexpr int64_t kEvery = 4;
  Spoil(1, "trainer.gradient=error");
  v1::JobSpec spec = cluster_.TinyJob("flipped", 1000, 3);
  spec.mutable_train()->set_global_batch(6);
  spec.mutable_train()->set_eval_sequences(6);
  spec.mutable_train()->set_replay_every_steps(kEvery);
  const std::string id = cluster_.Submit(spec);
  const auto first_has_ended = [&] {
    const v1::Job job = cluster_.Get(id);
    return job.attempts_size() > 0 && job.attempts(0).ended_at() > 0;
  };
  ASSERT_TRUE(Eventually(first_has_ended, seconds(60))) << cluster_.LogTails();
  const v1::Attempt first = cluster_.Get(id).attempts(0);
  EXPECT_EQ(v1::Reason_Name(first.reason()), "SILENT_CORRUPTION") << first.message();
  ASSERT_EQ(first.plan().rank_workers_size(), 3);
  ASSERT_EQ(first.plan().rank_workers(1), "worker-1");
  EXPECT_THAT(first.message(), HasSubstr("was computed twice with different bits; rank 1 on "));
  EXPECT_LT(first.last_step(), kEvery) << "no update follows";
  EXPECT_TRUE(Eventually([&] { return SuspicionOf("worker-1") > 0; }, seconds(10)));
  EXPECT_EQ(SuspicionOf("worker-0"), 0);
  EXPECT_EQ(SuspicionOf("worker-2"), 0);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest cancel;
  v1::Job cancelled;
  cancel.set_id(id);
  ASSERT_TRUE(cluster_.api().CancelJob(&context, cancel, &cancelled).ok());
  cluster_.Await(id, v1::CANCELLED);
}

}  // namespace
}  // namespace weft::testing
