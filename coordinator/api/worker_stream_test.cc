// The stream of a worker: restarts on both sides, lost and late workers, logs, rendezvous.
#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ApiTest, ARestartedCoordinatorAdoptsWhatRuns) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  worker.reset();
  Restart();
  EXPECT_EQ(Get(id).state(), v1::RUNNING);
  worker = Worker(FakeWorker::Running(FakeWorker::Hello("a"), id, 1));
  auto registered = worker->Await(kRegistered);
  ASSERT_TRUE(registered);
  ASSERT_EQ(registered->registered().adopted_size(), 1);
  EXPECT_EQ(registered->registered().adopted(0).job_id(), id);
  EXPECT_FALSE(worker->Await(kStart, milliseconds(300))) << "a running attempt was started again";
  Finish(*worker, id, 1);
  EXPECT_EQ(AwaitState(id, {v1::SUCCEEDED}).attempts_size(), 1);
}

TEST_F(ApiTest, AWorkerThatReportsSuccessWithoutTrainingIsNotBelieved) {
  auto worker = Worker(FakeWorker::Hello("a"));
  const std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  v1::WorkerMessage message;
  v1::Checkpoint& checkpoint = *message.mutable_checkpoint()->mutable_checkpoint();
  checkpoint.set_job_id(id);
  checkpoint.set_epoch(1);
  checkpoint.set_step(999999);
  checkpoint.set_path("/etc/passwd");
  checkpoint.set_verified(true);
  worker->Send(message);
  worker->Report(id, 1, v1::ATTEMPT_FINISHED);
  const auto ack = worker->Await(kAttemptAck);
  ASSERT_TRUE(ack);
  const auto start = worker->Await(kStart);
  ASSERT_TRUE(start) << "it is tried again";
  EXPECT_EQ(start->start().epoch(), 2);
  const v1::Job job = Get(id);
  EXPECT_EQ(job.attempts(0).reason(), v1::RANK_DIED);
  EXPECT_THAT(job.attempts(0).message(), HasSubstr("step 0 of 1000 was the last one reported"));
  EXPECT_FALSE(job.progress().has_checkpoint_step());
}

TEST_F(ApiTest, AnAcknowledgementIsOfTheRanksThatTheReportIsOf) {
  auto worker = Worker(FakeWorker::Hello("a"));
  v1::WorkerMessage message;
  message.mutable_attempt()->set_job_id("ended");
  message.mutable_attempt()->set_epoch(2);
  message.mutable_attempt()->set_state(v1::ATTEMPT_STOPPED);
  worker->Send(message);
  auto ack = worker->Await(kAttemptAck);
  ASSERT_TRUE(ack);
  EXPECT_FALSE(ack->attempt_ack().has_first_rank());
  message.mutable_attempt()->set_first_rank(3);
  worker->Send(message);
  ack = worker->Await(kAttemptAck);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->attempt_ack().job_id(), "ended");
  EXPECT_EQ(ack->attempt_ack().epoch(), 2);
  EXPECT_EQ(ack->attempt_ack().state(), v1::ATTEMPT_STOPPED);
  EXPECT_EQ(ack->attempt_ack().first_rank(), 3);
}

TEST_F(ApiTest, AnUndeliveredStartIsDeliveredAfterTheRestart) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker.reset();  // it never answered
  Restart();
  worker = Worker(FakeWorker::Hello("a"));
  auto start = worker->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 1);
}

TEST_F(ApiTest, AWorkerThatStaysAwayLosesItsAttemptToAnother) {
  auto lost = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(lost->Await(kStart));
  lost->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  lost.reset();
  auto other = Worker(FakeWorker::Hello("b"));
  ASSERT_TRUE(other->Await(kRegistered));
  auto begin = std::chrono::steady_clock::now();
  std::optional<v1::CoordinatorMessage> start;
  while (!start && std::chrono::steady_clock::now() - begin < seconds(8)) {
    other->Heartbeat();
    start = other->Await(kStart, milliseconds(200));
  }
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 2);
  std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(waited.count(), 1.5) << "dispatched before the lease ran out";
  v1::Job job = Get(id);
  EXPECT_EQ(job.attempts(0).reason(), v1::WORKER_LOST);
  EXPECT_EQ(coordinator_->Metric("weft_coord_lease_expirations_total"), 1);

  // The first worker comes back from the dead with the old attempt.
  auto zombie = Worker(FakeWorker::Running(FakeWorker::Hello("a"), id, 1));
  auto registered = zombie->Await(kRegistered);
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->registered().adopted_size(), 0);
  zombie->Report(id, 1, v1::ATTEMPT_FINISHED);
  ASSERT_TRUE(zombie->Await(kAttemptAck));
  EXPECT_NE(Get(id).state(), v1::SUCCEEDED);
  EXPECT_GE(coordinator_->Metric("weft_coord_fenced_requests_total"), 2);
}

TEST_F(ApiTest, AZombiesOldAttemptIsStoppedByItsHeartbeat) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  worker->Heartbeat("tiny-other", 3);
  auto stop = worker->Await(kStop);
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->stop().epoch(), 3);
  EXPECT_FALSE(stop->stop().graceful());
}

TEST_F(ApiTest, LosingOneOfTwoWorkersStopsTheOtherAndRestartsBothRanks) {
  auto a = Worker(FakeWorker::Hello("a", 1));
  auto b = Worker(FakeWorker::Hello("b", 1));
  ASSERT_TRUE(a->Await(kRegistered));
  ASSERT_TRUE(b->Await(kRegistered));
  std::string id = MustSubmit(Spec(2));
  ASSERT_TRUE(a->Await(kStart));
  ASSERT_TRUE(b->Await(kStart));
  a->Report(id, 1, v1::ATTEMPT_TRAINING);
  b->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  b->Report(id, 1, v1::ATTEMPT_FAILED, v1::RANK_DIED);
  ASSERT_TRUE(a->Await(kStop));
  EXPECT_EQ(Get(id).state(), v1::RECOVERING);
  a->Report(id, 1, v1::ATTEMPT_STOPPED);
  auto start = a->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 2);
  ASSERT_TRUE(b->Await(kStart));
}

TEST_F(ApiTest, AWorkerChecksItsMachineBeforeItGetsRanksAndTellsOfThem) {
  options_.health.limit = seconds(10);
  Restart();
  auto a = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(a->Await(kRegistered));
  auto check = a->Await(v1::CoordinatorMessage::kCheckHealth);
  ASSERT_TRUE(check);
  EXPECT_EQ(check->check_health().limit_seconds(), 10);
  const std::string id = MustSubmit(Spec());
  EXPECT_FALSE(a->Await(kStart, milliseconds(50)));
  v1::WorkerMessage healthy;
  healthy.mutable_health()->set_request_id(check->check_health().request_id());
  healthy.mutable_health()->set_device(-1);
  a->Send(healthy);
  auto start = a->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_GT(start->start().mean_seconds_between_failures(), 1e6);
  a->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  v1::WorkerMessage beat;
  v1::RunningAttempt& running = *beat.mutable_heartbeat()->add_running();
  running.set_job_id(id);
  running.set_epoch(1);
  running.add_ranks(0);
  running.add_rank_busy_seconds(0.5);
  running.mutable_progress()->set_step(1);
  running.set_checkpoint_seconds(0);
  a->Send(beat);
  v1::Job job = Get(id);
  for (int i = 0; i < 500 && job.ledger().useful_seconds() == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
    job = Get(id);
  }
  EXPECT_GT(job.ledger().useful_seconds(), 0);
  EXPECT_GT(job.ledger().queued_seconds(), 0.04) << "until the check was done";
}

TEST_F(ApiTest, AWorkerOfAnotherVersionOrWithATakenNameIsRefused) {
  v1::Register hello = FakeWorker::Hello("a");
  hello.set_api_level(kApiLevel + 1);
  auto wrong = Worker(hello);
  auto answer = wrong->Await(kRegistered);
  ASSERT_TRUE(answer);
  EXPECT_THAT(answer->registered().refused(), HasSubstr("api level"));
  EXPECT_FALSE(wrong->Await(kStart, seconds(2))) << "the stream goes on";

  auto first = Worker(FakeWorker::Hello("b"));
  ASSERT_TRUE(first->Await(kRegistered));
  hello = FakeWorker::Hello("b");
  hello.set_incarnation("i-2");
  auto second = Worker(hello);
  answer = second->Await(kRegistered);
  ASSERT_TRUE(answer);
  EXPECT_THAT(answer->registered().refused(), HasSubstr("another worker is attached"));
}

TEST_F(ApiTest, ARestartedWorkerWithoutItsRanksCausesARecoveryAtOnce) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  worker.reset();
  std::this_thread::sleep_for(milliseconds(50));
  v1::Register hello = FakeWorker::Hello("a");
  hello.set_incarnation("i-2");
  worker = Worker(hello);
  auto start = worker->Await(kStart, milliseconds(1000));
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 2);
}

TEST_F(ApiTest, LogsAreFollowedByCursorAcrossARestart) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_STARTED);
  worker->Log(id, 1, 1, {"one", "two"});
  auto ack = worker->Await(kLogAck);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->log_ack().sequence(), 2);
  std::vector<std::string> seen;
  int64_t cursor = 0;
  auto read = [&](bool follow, size_t until) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    v1::StreamLogsRequest request;
    request.set_id(id);
    request.set_after_sequence(cursor);
    request.set_follow(follow);
    auto stream = jobs_->StreamLogs(&context, request);
    v1::LogLine line;
    while (seen.size() < until && stream->Read(&line)) {
      EXPECT_EQ(line.sequence(), cursor + 1);
      cursor = line.sequence();
      seen.push_back(line.text());
    }
    if (seen.size() >= until) context.TryCancel();
    while (stream->Read(&line)) {
    }
    return stream->Finish();
  };
  read(true, 2);
  worker.reset();
  Restart();
  worker = Worker(FakeWorker::Running(FakeWorker::Hello("a"), id, 1));
  ASSERT_TRUE(worker->Await(kRegistered));
  std::thread later([&] {
    worker->Log(id, 1, 2, {"two", "three"});
    worker->Log(id, 1, 4, {"four"});
    Finish(*worker, id, 1);
  });
  EXPECT_TRUE(read(true, 99).ok());
  later.join();
  EXPECT_THAT(seen, ElementsAre("one", "two", "three", "four"));
}

TEST_F(ApiTest, RanksMeetThroughTheRendezvous) {
  auto a = Worker(FakeWorker::Hello("a", 1));
  auto b = Worker(FakeWorker::Hello("b", 1));
  ASSERT_TRUE(a->Await(kRegistered));
  ASSERT_TRUE(b->Await(kRegistered));
  std::string id = MustSubmit(Spec(2));
  ASSERT_TRUE(a->Await(kStart));
  ASSERT_TRUE(b->Await(kStart));
  auto request = [&](int64_t number, int64_t epoch) {
    v1::WorkerMessage message;
    message.mutable_store()->set_request_id(number);
    message.mutable_store()->set_job_id(id);
    message.mutable_store()->set_epoch(epoch);
    return message;
  };
  v1::WorkerMessage get = request(1, 1);
  get.mutable_store()->mutable_get()->set_key("k");
  get.mutable_store()->mutable_get()->set_timeout_seconds(5);
  a->Send(get);
  EXPECT_FALSE(a->Await(v1::CoordinatorMessage::kStore, milliseconds(100)));
  v1::WorkerMessage set = request(2, 1);
  set.mutable_store()->mutable_set()->set_key("k");
  set.mutable_store()->mutable_set()->set_value(std::string("\0\xff", 2));
  b->Send(set);
  auto reply = a->Await(v1::CoordinatorMessage::kStore);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->store().value(), std::string("\0\xff", 2));
  EXPECT_EQ(reply->store().error(), "");
  get.mutable_store()->mutable_get()->set_key("never");
  get.mutable_store()->mutable_get()->set_timeout_seconds(0.05);
  a->Send(get);
  reply = a->Await(v1::CoordinatorMessage::kStore);
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->store().error(), HasSubstr("in time"));
  v1::WorkerMessage stale = request(3, 9);
  stale.mutable_store()->mutable_get()->set_key("k");
  a->Send(stale);
  reply = a->Await(v1::CoordinatorMessage::kStore);
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->store().error(), HasSubstr("over"));
}

}  // namespace
}  // namespace weft::coordinator
