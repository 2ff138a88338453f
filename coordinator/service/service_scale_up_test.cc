#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using Links = std::vector<std::shared_ptr<FakeLink>>;

/// Jobs of 1000 steps that take a second each; growth is looked at every ten seconds, after 120.
class ScaleUpTest : public ServiceTest {
 protected:
  /// Submits a job, which starts on the workers that are there, on all when `ranks` is 0.
  std::string Start(int64_t ranks, const Links& on, int start_seconds = 0) {
    const std::string id = Submit(ranks)->view.job.id;
    for (const auto& link : on) EXPECT_TRUE(link->Saw("start " + id + " 1"));
    for (int i = 0; i < start_seconds; ++i) Pass(1, on, {{id, 1, {}}});
    for (const auto& link : on) {
      service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
      EXPECT_TRUE(link->Saw("ack " + id));
    }
    EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    return id;
  }
  RunningAttempt Running(const std::string& id, int64_t epoch) {
    RunningAttempt running{id, epoch, {}};
    running.progress.step = ++step_;
    running.progress.checkpoint_step = 1;
    running.progress.step_seconds = step_seconds_;
    return running;
  }
  /// This many seconds, and steps of the job, whose ranks are on `training`.
  void Train(int duration, const std::string& id, int64_t epoch, const Links& training,
             const Links& idle = {}) {
    for (int i = 0; i < duration; ++i) {
      clock_.Advance(seconds(1));
      const RunningAttempt running = Running(id, epoch);
      for (const Links* links : {&training, &idle}) {
        for (const auto& link : *links) {
          const int64_t sequence = ++heartbeats_;
          std::vector<RunningAttempt> list;
          if (links == &training) list.push_back(running);
          service_->Heartbeat(link, sequence, list, false);
          ASSERT_TRUE(link->Saw("heartbeat " + std::to_string(sequence)));
        }
      }
      service_->Wake();
    }
  }
  /// Whether the ranks of attempt 1 were ordered to save and stop.
  static bool Stopped(const std::shared_ptr<FakeLink>& link, const std::string& id,
                      milliseconds patience = seconds(5)) {
    return link->Saw("stop " + id + " 1 gracefully", patience);
  }
  void ReportStopped(const std::string& id, int64_t epoch, const Links& links) {
    for (const auto& link : links) {
      service_->Report(link, id, {"", epoch, PlacementEvent::kStopped, Reason::kNone, "", ""});
    }
  }
  static bool StoppedByNow(const std::shared_ptr<FakeLink>& link, const std::string& id) {
    return Stopped(link, id, milliseconds(20));
  }

  int64_t step_ = 0;
  double step_seconds_ = 1;
};

TEST_F(ScaleUpTest, AJobTakesAWorkerThatStaysAndLosesNothing) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  Train(60, id, 1, {a});
  auto b = Attach("b");
  Train(119, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
  Train(11, id, 1, {a}, {b});
  ASSERT_TRUE(Stopped(a, id));
  EXPECT_EQ(AwaitState(id, JobState::kRecovering), JobState::kRecovering);
  EXPECT_EQ(service_->Get(id)->job.reason, Reason::kReplanned);
  Train(30, id, 1, {a}, {b});  // it saves, or trains to its outer step
  EXPECT_FALSE(a->Saw("stop " + id + " 1", milliseconds(1)) &&
               a->Saw("start " + id + " 2", milliseconds(1)));
  service_->Report(a, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  ASSERT_TRUE(b->Saw("start " + id + " 2"));
  const JobView view = *service_->Get(id);
  EXPECT_EQ(view.attempts[0].reason, Reason::kReplanned);
  EXPECT_EQ(view.attempts[0].message, "1 to 2 ranks: 2.0 times as fast by the plan");
  EXPECT_THAT(view.attempts[1].plan.rank_workers, ElementsAre("a", "b"));
  const std::vector<EventRecord> events = *store_->ListEvents(id);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const EventRecord& event) {
    return event.kind == "replan" && event.text == "1 to 2 ranks: 2.0 times as fast by the plan";
  }));
}

TEST_F(ScaleUpTest, AJobThatBecameSlowerGetsItsPlanBackForGood) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  auto b = Attach("b");
  Train(130, id, 1, {a}, {b});
  ASSERT_TRUE(Stopped(a, id));
  ReportStopped(id, 1, {a});
  ASSERT_TRUE(b->Saw("start " + id + " 2"));
  for (const auto& link : {a, b}) {
    service_->Report(link, id, {"", 2, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_TRUE(link->Saw("ack " + id + " 2"));
  }
  step_seconds_ = 1.5;                              // the link between them is slow
  const std::string wide = Submit(2)->view.job.id;  // it waits, and that is no reason against it
  Train(15, id, 2, {a, b});
  EXPECT_FALSE(a->Saw("stop " + id + " 2", milliseconds(20))) << "too few steps to tell";
  Train(16, id, 2, {a, b});
  ASSERT_TRUE(a->Saw("stop " + id + " 2 gracefully"));
  ReportStopped(id, 2, {a, b});
  ASSERT_TRUE(a->Saw("start " + id + " 3"));
  EXPECT_FALSE(b->Saw("start " + id + " 3", milliseconds(20)));
  const JobView view = *service_->Get(id);
  EXPECT_EQ(view.attempts[1].message, "2 to 1 ranks: 1.5 times as fast by what was measured");
  EXPECT_THAT(view.attempts[2].plan.rank_workers, ElementsAre("a"));
  service_->Cancel(wide, [](const Result<JobView>&) {});
  service_->Report(a, id, {"", 3, PlacementEvent::kTraining, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("ack " + id + " 3"));
  step_seconds_ = 1;
  Train(300, id, 3, {a}, {b});
  EXPECT_FALSE(a->Saw("stop " + id + " 3", milliseconds(20)));
}

TEST_F(ScaleUpTest, AWorkerThatComesAndGoesIsNotTaken) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  std::shared_ptr<FakeLink> b;
  for (int i = 0; i < 5; ++i) {
    b = Attach("b", 0, {}, "process " + std::to_string(i));
    Train(100, id, 1, {a}, {b});
    service_->Detach(b);
    Train(2, id, 1, {a});
  }
  EXPECT_FALSE(StoppedByNow(a, id));
  // One that loses only its connection stays.
  b = Attach("b", 0, {}, "process 4");
  Train(40, id, 1, {a}, {b});
  EXPECT_TRUE(Stopped(a, id));
}

TEST_F(ScaleUpTest, AJobGrowsWhereThoseThatWaitStartNoLater) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  const std::string wide = Submit(2)->view.job.id;  // wants both workers
  auto b = Attach("b");
  Train(119, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
  EXPECT_EQ(service_->Get(wide)->job.reason, Reason::kWaitingForCapacity);
  // What waits for all of it starts when it ends, which is sooner then.
  Train(12, id, 1, {a}, {b});
  EXPECT_TRUE(Stopped(a, id));
}

TEST_F(ScaleUpTest, AJobThatNoWorkerCanRunHoldsNobodyBack) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  ASSERT_TRUE(Submit(8).ok());
  auto b = Attach("b");
  Train(140, id, 1, {a}, {b});
  EXPECT_TRUE(Stopped(a, id));
}

TEST_F(ScaleUpTest, AJobSubmittedMeanwhileDoesNotTakeTheWorkerForWhichItIsStopped) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Start(0, {a, b});
  auto c = Attach("c");
  Train(140, id, 1, {a, b}, {c});
  ASSERT_TRUE(Stopped(a, id));
  service_->Report(a, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("ack " + id));
  const std::string other = Submit(1)->view.job.id;
  service_->Report(b, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  for (const auto& worker : {a, b, c}) ASSERT_TRUE(worker->Saw("start " + id + " 2"));
  EXPECT_EQ(service_->Get(other)->job.state, JobState::kQueued);
}

TEST_F(ScaleUpTest, AJobThatSaysItsRanksStaysAsItIs) {
  auto a = Attach("a");
  const std::string id = Start(1, {a});
  auto b = Attach("b");
  Train(300, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
}

TEST_F(ScaleUpTest, NotWhenItIsAboutToEnd) {
  auto a = Attach("a");
  const std::string id = Start(0, {a}, 5);
  step_ = 900;  // a start takes 5 s: 100 steps at twice the speed save 50 s, 20 steps 10 s
  auto b = Attach("b");
  Train(60, id, 1, {a}, {b});
  Train(39, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
}

TEST_F(ScaleUpTest, NotWhileItIsRecorded) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  auto b = Attach("b");
  Train(110, id, 1, {a}, {b});
  std::promise<Result<JobProfile>> profile;
  service_->Profile(id, 3, [&](Result<JobProfile> p) { profile.set_value(std::move(p)); });
  ASSERT_TRUE(a->Saw("profile 1"));
  Train(30, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
  service_->ReportProfile(a, 1, std::string("{}"));
  EXPECT_TRUE(profile.get_future().get().ok());
  Train(11, id, 1, {a}, {b});
  EXPECT_TRUE(Stopped(a, id));
}

TEST_F(ScaleUpTest, ACoordinatorKilledAfterItDecidedLetsTheRanksSaveAndGoesOnOnce) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  auto b = Attach("b");
  Train(140, id, 1, {a}, {b});
  ASSERT_TRUE(Stopped(a, id));
  EXPECT_EQ(AwaitState(id, JobState::kRecovering), JobState::kRecovering);
  StartService();
  // The ranks are not killed for being unknown, and are ordered again.
  a = Attach("a", 0, {Running(id, 1)});
  EXPECT_TRUE(a->Saw("registered 1"));
  EXPECT_TRUE(Stopped(a, id));
  b = Attach("b");
  Train(5, id, 1, {a}, {b});
  service_->Report(a, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  ASSERT_TRUE(b->Saw("start " + id + " 2"));
  EXPECT_EQ(service_->Get(id)->attempts.size(), 2u);
  EXPECT_EQ(service_->Get(id)->attempts[0].reason, Reason::kReplanned);
}

TEST_F(ScaleUpTest, WithoutTheNewWorkerItGoesOnAsBefore) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  auto b = Attach("b");
  Train(140, id, 1, {a}, {b});
  ASSERT_TRUE(Stopped(a, id));
  service_->Detach(b);
  service_->Report(a, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  EXPECT_THAT(service_->Get(id)->attempts[1].plan.rank_workers, ElementsAre("a"));
}

TEST_F(ScaleUpTest, WhatCannotBeStoredStopsNobody) {
  auto a = Attach("a");
  const std::string id = Start(0, {a});
  auto b = Attach("b");
  Train(115, id, 1, {a}, {b});
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  Train(30, id, 1, {a}, {b});
  EXPECT_FALSE(StoppedByNow(a, id));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
  ASSERT_TRUE(SetFailpoints("").ok());
  Train(11, id, 1, {a}, {b});
  EXPECT_TRUE(Stopped(a, id));
}

}  // namespace
}  // namespace weft::coordinator
