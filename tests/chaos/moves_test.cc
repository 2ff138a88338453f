// The coordinator is killed at each move of jobs that are cancelled, paused, displaced or out of
// time, before and after the move is stored.
#include "tests/chaos/coordinator_deaths.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;

/// Slow enough for a job to train on while the coordinator dies twice.
const Environment kVerySlowSteps{{"WEFT_FAILPOINTS", "trainer.before_step=sleep:250"}};

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMoveOfAJobThatIsCancelled) {
  const std::vector<std::string> points = MovesTo({"cancelling", "cancelled"});
  for (int64_t repeat = 0; repeat < repeats_; ++repeat) {
    Cluster cluster(Options(DiesAt(points[0]), kSlowSteps));
    const std::string id = cluster.Submit(cluster.TinyJob("coordinator-killed", 10000));
    cluster.AwaitStep(id, 3);
    DieAtEach(cluster, points, repeat, [&](const std::string&) {
      return Ask(cluster, id, &v1::Coordinator::Stub::CancelJob);
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(cluster.Await(id, v1::CANCELLED).attempts_size(), 1);
    EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id).empty(); }, seconds(5)));
    ExpectJobs(cluster, 1, waiting_);
  }
  ReportDeaths();
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMoveOfAJobThatIsPausedAndResumed) {
  const std::vector<std::string> points = MovesTo({"pausing", "paused", "queued"});
  for (int64_t repeat = 0; repeat < repeats_; ++repeat) {
    Cluster cluster(Options(DiesAt(points[0]), kVerySlowSteps));
    const std::string id = cluster.Submit(cluster.TinyJob("paused", kSteps));
    cluster.AwaitStep(id, 3);
    DieAtEach(cluster, points, repeat, [&](const std::string& next) {
      if (next.empty()) return Ask(cluster, id, &v1::Coordinator::Stub::GetJob);
      if (!next.starts_with("coordinator.to_queued")) {
        return Ask(cluster, id, &v1::Coordinator::Stub::PauseJob);
      }
      EXPECT_TRUE(cluster.RankPids(id).empty()) << "it is paused";
      return Ask(cluster, id, &v1::Coordinator::Stub::ResumeJob);
    });
    if (HasFatalFailure()) return;
    const v1::Job job = ExpectUnharmed(cluster, id, waiting_);
    ASSERT_EQ(job.attempts_size(), 2) << cluster.LogTails();
    EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "PAUSED_BY_USER");
    EXPECT_GT(job.attempts(1).first_step(), job.attempts(0).last_step()) << "no step twice";
  }
  ReportDeaths();
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMoveOfAJobThatIsDisplaced) {
  const std::vector<std::string> points = MovesTo({"recovering", "queued"});
  for (int64_t repeat = 0; repeat < repeats_; ++repeat) {
    Cluster::Options options = Options(DiesAt(points[0]), kVerySlowSteps);
    options.workers = 1;  // room for one job at a time
    Cluster cluster(options);
    const std::string low = cluster.Submit(cluster.TinyJob("low", kSteps));
    cluster.AwaitStep(low, 3);
    v1::JobSpec urgent = cluster.TinyJob("high", 10);
    urgent.mutable_scheduling()->set_priority(5);
    v1::SubmitJobResponse high;
    DieAtEach(cluster, points, repeat,
              [&](const std::string&) { return cluster.TrySubmit(urgent, "high", &high).ok(); });
    if (HasFatalFailure()) return;
    EXPECT_EQ(cluster.Await(high.job().id(), v1::SUCCEEDED).attempts_size(), 1);
    const v1::Job job = ExpectUnharmed(cluster, low, waiting_, 2);
    ASSERT_EQ(job.attempts_size(), 2) << cluster.LogTails();
    EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "PREEMPTED");
    EXPECT_GT(job.attempts(1).first_step(), job.attempts(0).last_step()) << "no step twice";
  }
  ReportDeaths();
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMoveOfAJobWhoseTimeIsOver) {
  const std::vector<std::string> points = MovesTo({"recovering", "failed"});
  for (int64_t repeat = 0; repeat < repeats_; ++repeat) {
    Cluster cluster(Options(DiesAt(points[0]), kSlowSteps));
    v1::JobSpec spec = cluster.TinyJob("limited", 100000);
    spec.mutable_checkpoint()->set_every_steps(100000);  // only what stops saves
    spec.mutable_scheduling()->set_time_limit_seconds(10);
    const std::string id = cluster.Submit(spec);
    cluster.AwaitStep(id, 3);
    DieAtEach(cluster, points, repeat,
              [&](const std::string&) { return Ask(cluster, id, &v1::Coordinator::Stub::GetJob); });
    if (HasFatalFailure()) return;
    const v1::Job job = cluster.Await(id, v1::FAILED);
    EXPECT_EQ(v1::Reason_Name(job.reason()), "TIME_LIMIT") << job.message();
    ASSERT_EQ(job.attempts_size(), 1);
    const std::vector<v1::Checkpoint> checkpoints = cluster.Checkpoints(id);
    ASSERT_FALSE(checkpoints.empty()) << cluster.LogTails();
    EXPECT_EQ(checkpoints[0].step(), job.attempts(0).last_step());
    EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id).empty(); }, seconds(5)));
    ExpectJobs(cluster, 1, waiting_);
  }
  ReportDeaths();
}

}  // namespace
}  // namespace weft::testing
