// Where the time of a job goes, by a clock that tests move.
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

class ServiceLedgerTest : public ServiceTest {
 protected:
  RunningAttempt At(const std::string& id, int64_t epoch, int64_t step) {
    RunningAttempt running{id, epoch, {}, {}};
    running.progress.step = step;
    running.progress.step_seconds = 1;
    running.activity = {"", "training", 0, 1, ""};
    return running;
  }
  /// `seconds` steps of one second each, from `step` on.
  void Steps(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch,
             int64_t step, int seconds) {
    for (int i = 1; i <= seconds; ++i) Pass(1, {link}, {At(id, epoch, step + i)});
  }
  void Report(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch,
              PlacementEvent event, Reason reason = Reason::kNone) {
    service_->Report(link, id, {"", epoch, event, reason, "", ""});
  }
  /// The seconds of a class in the metrics of the coordinator.
  double Counted(const std::string& name) {
    const std::string text = metrics_.Text();
    const std::string series = "weft_coord_job_seconds_total{class=\"" + name + "\"} ";
    const size_t at = text.find(series);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size()));
  }
};

TEST_F(ServiceLedgerTest, SumsToTheWallTimeThroughAFailureAndARestart) {
  const std::string id = Submit(1)->view.job.id;
  Pass(4, {});
  EXPECT_NEAR(service_->Get(id)->ledger.queued_seconds, 4, 1e-6);
  auto a = Attach("a");
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  Report(a, id, 1, PlacementEvent::kStarted);
  Pass(3, {a});
  Report(a, id, 1, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  Steps(a, id, 1, 0, 10);
  SaveAt(a, id, 1, 6);
  Steps(a, id, 1, 10, 2);
  Ledger ledger = service_->Get(id)->ledger;
  EXPECT_NEAR(ledger.starting_seconds, 3, 1.01);
  EXPECT_NEAR(ledger.useful_seconds, 12, 1.01);
  Pass(5, {a}, {At(id, 1, 12)});  // no step any more
  Report(a, id, 1, PlacementEvent::kFailed, Reason::kRankDied);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  ledger = service_->Get(id)->ledger;
  EXPECT_NEAR(ledger.recovery_seconds, 5, 1e-6) << "from the last step on";
  StartService();
  a = Attach("a", 0, {At(id, 2, 0)});
  Pass(2, {a}, {At(id, 2, 0)});
  Report(a, id, 2, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  Steps(a, id, 2, 6, 10);
  ledger = service_->Get(id)->ledger;
  EXPECT_NEAR(ledger.rework_seconds, 6, 1.01) << "steps 7 to 12, made again";
  EXPECT_NEAR(ledger.Total(), 4 + 3 + 12 + 5 + 2 + 10, 1e-6);
  FinishAttempt(a, id, 2);
  ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  const JobView view = *service_->Get(id);
  EXPECT_NEAR(view.ledger.Total(), *view.job.ended_at - view.job.submitted_at, 1e-6);
  EXPECT_NEAR(view.ledger.rework_seconds, ledger.rework_seconds, 1e-6) << "as stored";
  EXPECT_NEAR(view.ledger.recovery_seconds, 5, 1e-6);
}

TEST_F(ServiceLedgerTest, CountsTheTimeOfAllJobsOnce) {
  const std::string first = Submit(1)->view.job.id;
  Pass(20, {});
  auto a = Attach("a");
  ASSERT_TRUE(a->Saw("start " + first + " 1"));
  Report(a, first, 1, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(first, JobState::kRunning), JobState::kRunning);
  Steps(a, first, 1, 0, 30);
  FinishAttempt(a, first);
  ASSERT_EQ(AwaitState(first, JobState::kSucceeded), JobState::kSucceeded);
  ASSERT_TRUE(a->Saw("ack " + first));
  EXPECT_NEAR(Counted("queued"), 20, 1e-6);
  const Ledger ledger = service_->Get(first)->ledger;
  EXPECT_NEAR(Counted("starting") + Counted("useful"), 30, 1e-6);
  EXPECT_NEAR(Counted("useful"), ledger.useful_seconds, 1e-6);
}

TEST_F(ServiceLedgerTest, CallsWaitsForDataOfAnyRankAClassOfTheirOwn) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Submit(2)->view.job.id;
  for (const auto& link : {a, b}) {
    ASSERT_TRUE(link->Saw("start " + id + " 1"));
    Report(link, id, 1, PlacementEvent::kTraining);
  }
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  // Rank 1 waits for data for 0.4 of each second, rank 0 for rank 1.
  double useful = 0;
  for (int step = 1; step <= 30; ++step) {
    RunningAttempt waits = At(id, 1, step), first = waits;
    waits.data_wait_seconds = 0.4 * step;
    useful += waits.progress.step_seconds - 0.4;
    Pass(1, {b}, {waits});
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(a, sequence, {first}, false);
    ASSERT_TRUE(a->Saw("heartbeat " + std::to_string(sequence)));
  }
  const Ledger ledger = service_->Get(id)->ledger;
  EXPECT_NEAR(ledger.data_wait_seconds, 12, 1e-6);
  EXPECT_NEAR(ledger.useful_seconds, useful, 1.01) << "as the steps say";
  EXPECT_NEAR(ledger.starting_seconds + ledger.data_wait_seconds + useful, 30, 1.01);
  Pass(11, {a}, {At(id, 1, 30)});  // it is counted every five seconds
  EXPECT_NEAR(Counted("data_wait"), 12, 1e-6);
}

TEST_F(ServiceLedgerTest, KnowsThatAnAttemptGoesOnFromASnapshot) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  Report(a, id, 1, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  Steps(a, id, 1, 0, 10);
  Report(a, id, 1, PlacementEvent::kFailed, Reason::kDeviceFailed);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  SaveAt(a, id, 2, 10);
  Report(a, id, 2, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  Steps(a, id, 2, 10, 5);
  EXPECT_EQ(service_->Get(id)->ledger.rework_seconds, 0);
}

TEST_F(ServiceLedgerTest, CallsTheSaveOfAStopACheckpoint) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  Report(a, id, 1, PlacementEvent::kTraining);
  ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  Steps(a, id, 1, 0, 10);
  std::promise<void> asked;
  service_->Cancel(id, [&](const Result<JobView>&) { asked.set_value(); });
  asked.get_future().wait();
  RunningAttempt saved = At(id, 1, 10);
  Pass(3, {a}, {saved});
  saved.checkpoint_seconds = 3;
  Pass(1, {a}, {saved});
  Report(a, id, 1, PlacementEvent::kStopped);
  ASSERT_EQ(AwaitState(id, JobState::kCancelled), JobState::kCancelled);
  const Ledger ledger = service_->Get(id)->ledger;
  EXPECT_NEAR(ledger.checkpoint_seconds, 3, 1e-6);
  EXPECT_NEAR(ledger.Total(), 14, 1e-6);
  EXPECT_EQ(ledger.recovery_seconds, 0);
}

}  // namespace
}  // namespace weft::coordinator
