// Drains, hangs, stops that take too long, and retries that wait, by a clock that tests move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServiceStopsTest : public ServiceTest {
 protected:
  RunningAttempt Running(const std::string& id, int64_t epoch, const std::string& activity,
                         double silent_seconds) {
    RunningAttempt running{id, epoch, {}, {}};
    running.activity = {"", activity, silent_seconds, 0.5, "rank 0 stopped"};
    return running;
  }
  void Beat(const std::shared_ptr<FakeLink>& link, const std::vector<RunningAttempt>& running,
            bool draining = false) {
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(link, sequence, running, draining);
    ASSERT_TRUE(link->Saw("heartbeat " + std::to_string(sequence)));
  }
  /// Heartbeats, as a worker sends them, until the link sees that: while a change of the job is
  /// being stored, none is looked at.
  bool BeatUntil(const std::shared_ptr<FakeLink>& link, const std::vector<RunningAttempt>& running,
                 const std::string& seen) {
    for (int i = 0; i < 100; ++i) {
      Beat(link, running);
      if (link->Saw(seen, milliseconds(50))) return true;
    }
    return false;
  }
  /// A job of a rank on each worker that trains.
  std::string Train(const std::vector<std::shared_ptr<FakeLink>>& links) {
    const std::string id = Submit(std::ssize(links))->view.job.id;
    for (const auto& link : links) {
      EXPECT_TRUE(link->Saw("start " + id + " 1"));
      for (PlacementEvent event : {PlacementEvent::kStarted, PlacementEvent::kTraining}) {
        service_->Report(link, id, {"", 1, event, Reason::kNone, "", ""});
      }
    }
    EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    return id;
  }
  void Stopped(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch) {
    service_->Report(link, id, {"", epoch, PlacementEvent::kStopped, Reason::kNone, "", ""});
  }
  bool HasEvent(const std::string& id, const std::string& kind, const std::string& words) {
    const Result<std::vector<EventRecord>> events = service_->Events(id);
    if (!events.ok()) return false;
    for (const EventRecord& event : *events) {
      if (event.kind == kind && event.text.find(words) != std::string::npos) return true;
    }
    return false;
  }
};

TEST_F(ServiceStopsTest, ADrainingWorkerStopsAllRanksOfItsJobsGracefully) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  Beat(a, {Running(id, 1, "training", 0)}, /*draining=*/true);
  EXPECT_TRUE(a->Saw("stop " + id + " 1 gracefully"));
  EXPECT_TRUE(b->Saw("stop " + id + " 1 gracefully"));
  auto c = Attach("c");
  // The one that has nothing to write is done first.
  Stopped(b, id, 1);
  ASSERT_TRUE(b->Saw("ack " + id));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRecovering);
  Stopped(a, id, 1);
  ASSERT_TRUE(b->Saw("start " + id + " 2"));
  ASSERT_TRUE(c->Saw("start " + id + " 2"));
  EXPECT_EQ(service_->Get(id)->attempts[0].reason, Reason::kDrained);
  EXPECT_TRUE(HasEvent(id, "drain", "worker a drains"));
}

TEST_F(ServiceStopsTest, ACoordinatorThatRestartsDuringADrainLetsTheRanksSave) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  Beat(a, {Running(id, 1, "training", 0)}, /*draining=*/true);
  ASSERT_TRUE(b->Saw("stop " + id + " 1 gracefully"));
  ASSERT_EQ(AwaitState(id, JobState::kRecovering), JobState::kRecovering);
  StartService();
  a = Attach("a", 0, {Running(id, 1, "saving", 0)});
  EXPECT_TRUE(a->Saw("registered 1")) << "adopted, so that it may go on";
  EXPECT_TRUE(a->Saw("stop " + id + " 1 gracefully"));
}

TEST_F(ServiceStopsTest, RanksThatMakeNoStepAreKilledAndTheJobIsTriedAgain) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  Beat(a, {Running(id, 1, "training", 30)});
  Beat(b, {Running(id, 1, "training", 3)});
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning) << "one of them shows life";
  ASSERT_TRUE(BeatUntil(b, {Running(id, 1, "training", 25)}, "stop " + id + " 1"));
  ASSERT_TRUE(a->Saw("stop " + id + " 1"));
  EXPECT_FALSE(a->Saw("stop " + id + " 1 gracefully", milliseconds(1)));
  EXPECT_TRUE(HasEvent(id, "hung", "no step was made for 25 s"));
  EXPECT_EQ(service_->Get(id)->job.reason, Reason::kHung);
  Stopped(a, id, 1);
  Stopped(b, id, 1);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  EXPECT_EQ(service_->Get(id)->attempts[0].reason, Reason::kHung);
}

TEST_F(ServiceStopsTest, AStartWithoutAnySignOfLifeIsEnded) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kStarted, Reason::kNone, "", ""});
  Pass(310, {a}, {Running(id, 1, "starting", 290)});
  EXPECT_FALSE(a->Saw("stop", milliseconds(20)));
  EXPECT_TRUE(BeatUntil(a, {Running(id, 1, "starting", 310)}, "stop " + id + " 1"));
  EXPECT_TRUE(HasEvent(id, "hung", "no sign of life while starting"));
}

TEST_F(ServiceStopsTest, AStartThatWaitedForACoordinatorOutOfReachIsNotEnded) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kStarted, Reason::kNone, "", ""});
  Pass(310, {a}, {Running(id, 1, "starting", 1)});
  service_->Detach(a);
  a = Attach("a", 0, {Running(id, 1, "starting", 309)});
  Beat(a, {Running(id, 1, "starting", 310)});
  EXPECT_FALSE(a->Saw("stop", milliseconds(20))) << "what it asked for may come now";
  Pass(290, {a}, {Running(id, 1, "starting", 600)});
  EXPECT_FALSE(a->Saw("stop", milliseconds(20)));
  Pass(11, {a}, {Running(id, 1, "starting", 611)});
  EXPECT_TRUE(BeatUntil(a, {Running(id, 1, "starting", 612)}, "stop " + id + " 1"));
}

TEST_F(ServiceStopsTest, AStartIsNotEndedByACoordinatorThatWasItselfHeldUp) {
  options_.lease = seconds(1000);
  StartService();
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kStarted, Reason::kNone, "", ""});
  Pass(2, {a}, {Running(id, 1, "starting", 1)});
  Pass(320, {}, {});  // its loop runs, but nobody's heartbeat comes
  clock_.Advance(seconds(320));
  Beat(a, {Running(id, 1, "starting", 640)});
  EXPECT_FALSE(a->Saw("stop", milliseconds(20)));
}

TEST_F(ServiceStopsTest, ACancelKillsRanksThatDoNotStop) {
  auto a = Attach("a");
  const std::string id = Train({a});
  Beat(a, {Running(id, 1, "training", 10)});
  std::promise<void> asked;
  service_->Cancel(id, [&](const Result<JobView>&) { asked.set_value(); });
  asked.get_future().get();
  ASSERT_TRUE(a->Saw("stop " + id + " 1 gracefully"));
  Pass(59, {a}, {Running(id, 1, "training", 69)});
  EXPECT_FALSE(HasEvent(id, "kill", ""));
  Pass(2, {a}, {Running(id, 1, "training", 71)});
  for (int i = 0; i < 1000 && !HasEvent(id, "kill", ""); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(HasEvent(id, "kill", "ranks did not stop within 60 s: they are killed"));
  EXPECT_THAT(service_->Get(id)->job.message, HasSubstr("did not stop within 60 s"));
  Stopped(a, id, 1);
  EXPECT_EQ(AwaitState(id, JobState::kCancelled), JobState::kCancelled);
}

TEST_F(ServiceStopsTest, RanksThatAreSavingGetTenTimesAsLong) {
  options_.stop_limit = seconds(10);
  StartService();
  auto a = Attach("a");
  const std::string id = Train({a});
  std::promise<void> asked;
  service_->Cancel(id, [&](const Result<JobView>&) { asked.set_value(); });
  asked.get_future().get();
  Pass(95, {a}, {Running(id, 1, "saving", 0.5)});
  EXPECT_FALSE(HasEvent(id, "kill", ""));
  Pass(20, {a}, {Running(id, 1, "saving", 0.5)});
  for (int i = 0; i < 1000 && !HasEvent(id, "kill", ""); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(HasEvent(id, "kill", "within 100 s"));
}

TEST_F(ServiceStopsTest, AFailedJobWaitsEachTimeLongerAndHoldsBackNobody) {
  options_.retry = {.first_seconds = 10, .most_seconds = 300};
  StartService();
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kFailed, Reason::kRankDied, "signal 9", ""});
  ASSERT_EQ(AwaitState(id, JobState::kQueued), JobState::kQueued);
  EXPECT_THAT(service_->Get(id)->job.message,
              AllOf(HasSubstr("signal 9"), HasSubstr("attempt 2 of 10 starts in ")));
  Pass(4, {a});
  EXPECT_FALSE(a->Saw("start " + id + " 2", milliseconds(20)));
  const std::string other = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + other + " 1"));
  FinishAttempt(a, other);
  ASSERT_EQ(AwaitState(other, JobState::kSucceeded), JobState::kSucceeded);
  // A restarted coordinator remembers.
  StartService();
  a = Attach("a");
  EXPECT_FALSE(a->Saw("start " + id + " 2", milliseconds(20)));
  Pass(7, {a});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  service_->Report(a, id, {"", 2, PlacementEvent::kFailed, Reason::kRankDied, "signal 9", ""});
  ASSERT_EQ(AwaitState(id, JobState::kQueued), JobState::kQueued);
  Pass(9, {a});
  EXPECT_FALSE(a->Saw("start " + id + " 3", milliseconds(20))) << "10 to 20 seconds now";
  Pass(12, {a});
  EXPECT_TRUE(a->Saw("start " + id + " 3"));
}

TEST_F(ServiceStopsTest, BrokenMachinesDoNotEndAJobThatGoesOnFromSnapshots) {
  options_.suspicion.quarantine_at = 0;
  StartService();
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  const int64_t more = service_->Get(id)->job.spec.retry.max_attempts + 2;
  for (int64_t epoch = 1; epoch <= more; ++epoch) {
    SCOPED_TRACE(epoch);
    ASSERT_TRUE(a->Saw("start " + id + " " + std::to_string(epoch) + " "))
        << service_->Get(id)->job.message;
    // What the attempt before had in memory.
    if (epoch > 1) SaveAt(a, id, epoch, 10 * (epoch - 1));
    service_->Report(a, id, {"", epoch, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    RunningAttempt running = Running(id, epoch, "training", 0);
    running.progress.step = 10 * epoch;
    Beat(a, {running});
    if (epoch > 1) {
      EXPECT_EQ(service_->Get(id)->job.progress.checkpoint_step, 10 * (epoch - 1))
          << "the worker did not write it";
    }
    if (epoch == more / 2) {
      // A restarted coordinator remembers.
      StartService();
      a = Attach("a", 0, {running});
      Pass(8, {a}, {running});
    }
    service_->Report(a, id, {"", epoch, PlacementEvent::kFailed, Reason::kDeviceFailed, "", ""});
  }
  ASSERT_TRUE(a->Saw("start " + id + " " + std::to_string(more + 1) + " "));
  EXPECT_EQ(std::ssize(service_->Get(id)->attempts), more + 1);
}

}  // namespace
}  // namespace weft::coordinator
