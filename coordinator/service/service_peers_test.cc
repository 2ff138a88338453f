// Attempts whose ranks come and go while they run.
#include <gmock/gmock.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;

class ServicePeersTest : public ServiceTest {
 protected:
  /// A job in rounds by time with a rank on each of these workers, which train.
  std::string Train(const std::vector<std::shared_ptr<FakeLink>>& links, int64_t least = 0) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.train.local_round_seconds = 10;
    spec.resources.min_ranks = least;
    spec.resources.device = "cpu";
    std::promise<Result<SubmitResult>> promise;
    service_->Submit(spec, "request-" + std::to_string(++requests_),
                     [&](Result<SubmitResult> r) { promise.set_value(std::move(r)); });
    const Result<SubmitResult> submitted = promise.get_future().get();
    EXPECT_TRUE(submitted.ok()) << submitted.status().message();
    const std::string id = submitted->view.job.id;
    for (const auto& link : links) {
      EXPECT_TRUE(link->Saw("start " + id + " 1"));
      EXPECT_EQ(link->last_start().membership, 1);
      EXPECT_FALSE(link->last_start().joins);
      service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
      EXPECT_TRUE(link->Saw("ack " + id));
    }
    EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    return id;
  }
  /// What a worker says of its rank, which knows that membership.
  static RunningAttempt Running(const std::string& id, int64_t membership,
                                const std::string& activity = "training") {
    RunningAttempt running;
    running.job_id = id;
    running.epoch = 1;
    running.activity.activity = activity;
    running.membership = membership;
    return running;
  }
  void Beat(const std::shared_ptr<FakeLink>& link, const RunningAttempt& running,
            bool draining = false) {
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(link, sequence, {running}, draining);
    ASSERT_TRUE(link->Saw("heartbeat " + std::to_string(sequence)));
  }
  bool HasEvent(const std::string& id, const std::string& kind) {
    for (int i = 0; i < 1000; ++i) {
      const Result<std::vector<EventRecord>> events = service_->Events(id);
      for (const EventRecord& event : *events) {
        if (event.kind == kind) return true;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
};

TEST_F(ServicePeersTest, ALostWorkerKeepsTheAttemptAndOneThatComesBackJoinsIt) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  service_->Detach(b);
  // Its lease and the margin pass.
  Pass(20, {a}, {Running(id, 1)});
  ASSERT_TRUE(a->Saw("membership " + id + " 2: 0, gone: 1"));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
  EXPECT_TRUE(HasEvent(id, "peer left"));
  EXPECT_FALSE(a->Saw("stop", milliseconds(50)));
  ASSERT_EQ(service_->Get(id)->attempts.size(), 1u);

  auto back = Attach("b", 0, {}, "another process");
  ASSERT_TRUE(back->Saw("start " + id + " 1"));
  EXPECT_TRUE(back->last_start().joins);
  EXPECT_EQ(back->last_start().ranks, (std::vector<int64_t>{2}));
  service_->Report(back, id, {"", 1, PlacementEvent::kStarted, Reason::kNone, "", ""});
  Beat(back, Running(id, 0, "starting"));
  EXPECT_FALSE(a->Saw("membership " + id + " 3", milliseconds(50))) << "it is not ready";
  Beat(back, Running(id, 2, "joining"));
  ASSERT_TRUE(a->Saw("membership " + id + " 3: 0 2"));
  ASSERT_TRUE(back->Saw("membership " + id + " 3: 0 2"));
  EXPECT_TRUE(HasEvent(id, "peer joined"));
  EXPECT_EQ(service_->Get(id)->attempts[0].plan.rank_workers.size(), 2u);

  FinishAttempt(a, id);
  FinishAttempt(back, id);
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  EXPECT_EQ(service_->Get(id)->attempts.size(), 1u);
}

TEST_F(ServicePeersTest, WhatAWorkerSaysOfRanksBeforeIsNotOfThoseThatStartThere) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  service_->Detach(b);
  Pass(20, {a}, {Running(id, 1)});
  auto back = Attach("b", 0, {}, "another process");
  ASSERT_TRUE(back->Saw("start " + id + " 1"));
  // As the daemon before has left it.
  RunningAttempt before = Running(id, 1);
  before.first_rank = 1;
  Beat(back, before);
  PlacementReport late{"", 1, PlacementEvent::kFailed, Reason::kWorkerLost, "gave it up", ""};
  late.first_rank = 1;
  service_->Report(back, id, late);
  ASSERT_TRUE(back->Saw("ack " + id));
  EXPECT_FALSE(back->Saw("stop", milliseconds(50))) << "that would stop the new rank";
  RunningAttempt joining = Running(id, 2, "joining");
  joining.first_rank = 2;
  Beat(back, joining);
  EXPECT_TRUE(a->Saw("membership " + id + " 3: 0 2"));
}

TEST_F(ServicePeersTest, LateLinesOfARankThatWasOnTheWorkerBeforeAreStoredOnce) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  const auto append = [&](const std::shared_ptr<FakeLink>& link, int64_t rank, int64_t position) {
    LogAppend logs;
    logs.job_id = id;
    logs.epoch = 1;
    logs.first_rank = rank;
    logs.first_position = position;
    logs.lines.emplace_back().text = std::to_string(rank) + "." + std::to_string(position);
    logs.lines.back().rank = rank;
    service_->AppendLogs(link, logs);
    ASSERT_TRUE(link->Saw("logs " + std::to_string(position)));
  };
  append(b, 1, 1);
  append(b, 1, 2);
  service_->Detach(b);
  Pass(20, {a}, {Running(id, 1)});
  auto back = Attach("b");
  ASSERT_TRUE(back->Saw("start " + id + " 1"));
  ASSERT_EQ(back->last_start().ranks, (std::vector<int64_t>{2}));
  // It has not heard that the second one was stored, and has one that was not sent.
  append(back, 1, 2);
  append(back, 2, 1);
  append(back, 1, 3);
  const std::vector<LogRecord> stored = *store_->ReadLogs({.job_id = id, .rank = {}, .epoch = {}});
  std::vector<std::string> texts;
  for (const LogRecord& line : stored) texts.push_back(line.text);
  EXPECT_THAT(texts, ElementsAre("1.1", "1.2", "2.1", "1.3"));
}

TEST_F(ServicePeersTest, AWorkerThatDoesNotKnowTheNewestMembershipLearnsItAgain) {
  auto a = Attach("a"), b = Attach("b"), c = Attach("c");
  const std::string id = Train({a, b, c});
  service_->Report(c, id, {"", 1, PlacementEvent::kFailed, Reason::kRankDied, "killed", ""});
  ASSERT_TRUE(a->Saw("membership " + id + " 2: 0 1, gone: 2"));
  ASSERT_TRUE(b->Saw("membership " + id + " 2: 0 1, gone: 2"));
  // The coordinator is killed, and has it in its store.
  StartService();
  auto again = Attach("a", 0, {Running(id, 1)});
  EXPECT_TRUE(again->Saw("membership " + id + " 2: 0 1, gone: 2"));
  auto knows = Attach("b", 0, {Running(id, 2)});
  EXPECT_FALSE(knows->Saw("membership", milliseconds(50)));
}

TEST_F(ServicePeersTest, WithFewerThanTheLeastTheAttemptEnds) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b}, 2);
  service_->Report(b, id, {"", 1, PlacementEvent::kFailed, Reason::kRankDied, "killed", ""});
  EXPECT_TRUE(a->Saw("stop " + id + " 1"));
  EXPECT_FALSE(a->Saw("membership", milliseconds(50)));
}

TEST_F(ServicePeersTest, ADrainingWorkerIsLetGoWithoutAStopOfTheOthers) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  Beat(b, Running(id, 1), /*draining=*/true);
  ASSERT_TRUE(a->Saw("membership " + id + " 2: 0"));
  ASSERT_TRUE(b->Saw("membership " + id + " 2: 0")) << "it leaves at the next outer step";
  EXPECT_FALSE(a->Saw("stop", milliseconds(50)));
  service_->Report(b, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(b->Saw("ack " + id));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
}

TEST_F(ServicePeersTest, ALeavingRankThatIsLostIsMadeKnownToTheOthers) {
  auto a = Attach("a"), b = Attach("b"), c = Attach("c");
  const std::string id = Train({a, b, c});
  Beat(c, Running(id, 1), /*draining=*/true);
  ASSERT_TRUE(a->Saw("membership " + id + " 2: 0 1"));
  // They may be saving with it.
  service_->Report(c, id, {"", 1, PlacementEvent::kFailed, Reason::kRankDied, "killed", ""});
  EXPECT_TRUE(a->Saw("membership " + id + " 3: 0 1, gone: 2"));
  EXPECT_TRUE(b->Saw("membership " + id + " 3: 0 1, gone: 2"));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
}

TEST_F(ServicePeersTest, NoRankJoinsOnACordonedWorker) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  service_->Detach(b);
  Pass(20, {a}, {Running(id, 1)});
  ASSERT_TRUE(a->Saw("membership " + id + " 2: 0, gone: 1"));
  const auto set = [&](WorkerScheduling scheduling) {
    std::promise<Result<WorkerView>> done;
    service_->SetWorkerScheduling("b", scheduling, "new disk", [&](Result<WorkerView> view) {
      done.set_value(std::move(view));
    });
    return done.get_future().get().status();
  };
  ASSERT_TRUE(set(WorkerScheduling::kCordoned).ok());
  auto back = Attach("b", 0, {}, "another process");
  EXPECT_FALSE(back->Saw("start", milliseconds(50)));
  ASSERT_TRUE(set(WorkerScheduling::kSchedulable).ok());
  ASSERT_TRUE(back->Saw("start " + id + " 1"));
  EXPECT_TRUE(back->last_start().joins);
}

TEST_F(ServicePeersTest, RanksThatAllWaitForEachOtherComeTogetherAnew) {
  auto a = Attach("a"), b = Attach("b");
  const std::string id = Train({a, b});
  // The network between them was cut for a while, and both still reach the coordinator.
  for (int second = 0; second < 30; ++second) {
    clock_.Advance(seconds(1));
    Beat(a, Running(id, 1, "joining"));
    Beat(b, Running(id, 1, "joining"));
    service_->Wake();
  }
  EXPECT_TRUE(a->Saw("membership " + id + " 2: 0 1"));
  EXPECT_TRUE(HasEvent(id, "peers regroup"));
}

}  // namespace
}  // namespace weft::coordinator
