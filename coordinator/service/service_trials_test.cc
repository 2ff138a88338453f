#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

/// For any job three plans of a rank, which differ in the micro-batch.
Result<PlanReport> ThreePlans(const JobSpec& spec, const ClusterProfile& cluster) {
  WEFT_ASSIGN_OR_RETURN(PlanReport report, OneRankEach(spec, cluster));
  const PlanCandidate first = report.candidates[0];
  for (const int64_t micro_batch : {2, 4}) {
    report.candidates.push_back(first);
    report.candidates.back().chosen = false;
    report.candidates.back().plan.micro_batch = micro_batch;
  }
  return report;
}

/// A job of 1000 steps on one worker, for which three plans are tried.
class TrialsTest : public ServiceTest {
 protected:
  TrialsTest() { planner_ = AtOnce(ThreePlans); }

  void Start() {
    worker_ = Attach("a");
    id_ = Submit(1, "", 3)->view.job.id;
    AwaitTraining(1);
  }
  void AwaitTraining(int64_t epoch) {
    ASSERT_TRUE(worker_->Saw("start " + id_ + " " + std::to_string(epoch)));
    Report(epoch, PlacementEvent::kTraining);
    ASSERT_TRUE(worker_->Saw("ack " + id_ + " " + std::to_string(epoch)));
    ASSERT_EQ(AwaitState(id_, JobState::kRunning), JobState::kRunning);
  }
  void Report(int64_t epoch, PlacementEvent event, Reason reason = Reason::kNone) {
    service_->Report(worker_, id_, {"", epoch, event, reason, "", ""});
  }
  /// This many steps of this many seconds each.
  void Train(int64_t epoch, int steps, double step_seconds) {
    for (int i = 0; i < steps; ++i) {
      RunningAttempt running{id_, epoch, {}};
      running.progress.step = ++step_;
      running.progress.step_seconds = step_seconds;
      Pass(1, {worker_}, {running});
    }
  }
  bool Stopped(int64_t epoch, milliseconds patience = seconds(5)) {
    return worker_->Saw("stop " + id_ + " " + std::to_string(epoch) + " gracefully", patience);
  }
  /// By the plan of `epoch`, until it is ordered to stop for the next one, which starts.
  void Try(int64_t epoch, double step_seconds) {
    Train(epoch, 19, step_seconds);
    EXPECT_FALSE(Stopped(epoch, milliseconds(20))) << "too few steps to tell";
    Train(epoch, 12, step_seconds);
    ASSERT_TRUE(Stopped(epoch));
    Report(epoch, PlacementEvent::kStopped);
    AwaitTraining(epoch + 1);
  }
  std::vector<int64_t> MicroBatches() {
    std::vector<int64_t> all;
    const JobView view = *service_->Get(id_);
    for (const AttemptRecord& attempt : view.attempts) {
      all.push_back(attempt.plan.micro_batch);
    }
    return all;
  }

  std::shared_ptr<FakeLink> worker_;
  std::string id_;
  int64_t step_ = 0;
};

TEST_F(TrialsTest, ThreePlansTrainAndTheFastestMeasuredGoesOnToTheEnd) {
  Start();
  Try(1, 1.0);
  Try(2, 0.5);
  Try(3, 0.8);
  EXPECT_EQ(MicroBatches(), (std::vector<int64_t>{1, 2, 4, 2}));
  const JobView view = *service_->Get(id_);
  EXPECT_EQ(view.attempts[0].message, "plan 2 of 3 to try: 1 rank x 1 thread, micro-batch 2");
  EXPECT_EQ(view.attempts[2].message,
            "1 rank x 1 thread, micro-batch 2: 1.60 times as fast by what was measured");
  Train(4, 60, 0.5);
  EXPECT_FALSE(Stopped(4, milliseconds(20)));
  EXPECT_EQ(view.job.budget_from, 3) << "no attempt counts as a failure";
}

TEST_F(TrialsTest, TheLastOneGoesOnWhereItIsTheFastest) {
  Start();
  Try(1, 1.0);
  Try(2, 0.5);
  Train(3, 60, 0.4);
  EXPECT_FALSE(Stopped(3, milliseconds(20)));
}

TEST_F(TrialsTest, APlanThatRunsOutOfMemoryGivesWayToTheFastestSoFar) {
  Start();
  Try(1, 1.0);
  Report(2, PlacementEvent::kFailed, Reason::kOutOfMemory);
  AwaitTraining(3);
  EXPECT_EQ(MicroBatches(), (std::vector<int64_t>{1, 2, 1}));
}

TEST_F(TrialsTest, ACoordinatorThatWasRestartedKnowsWhatWasTried) {
  Start();
  Try(1, 0.5);
  Try(2, 1.0);
  StartService();
  RunningAttempt running{id_, 3, {}};
  running.progress.step = step_;
  worker_ = Attach("a", 0, {running});
  Train(3, 31, 0.8);
  ASSERT_TRUE(Stopped(3));
  Report(3, PlacementEvent::kStopped);
  AwaitTraining(4);
  EXPECT_EQ(MicroBatches(), (std::vector<int64_t>{1, 2, 4, 1}));
}

}  // namespace
}  // namespace weft::coordinator
