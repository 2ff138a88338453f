// The coordinator as its clients see it: a real server on a loopback port, and workers that speak
// the stream by hand.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <thread>

#include "common/version.h"
#include "coordinator/api/server.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Plans resources.ranks ranks of one thread, round and round over the workers.
Result<PlanReport> FakePlan(const JobSpec& spec, const ClusterProfile& cluster) {
  if (cluster.workers.empty()) return UnavailableError("no workers");
  int64_t ranks = std::max<int64_t>(1, spec.resources.ranks);
  int64_t cores = 0;
  for (const auto& worker : cluster.workers) cores += worker.cores;
  if (ranks > cores) return ExhaustedError("needs " + std::to_string(ranks) + " cores");
  Plan plan;
  plan.mesh.data = ranks;
  for (int64_t i = 0; i < ranks; ++i) {
    plan.rank_workers.push_back(
        cluster.workers[static_cast<size_t>(i) % cluster.workers.size()].worker_id);
  }
  PlanReport report;
  report.candidates.push_back({plan, true, true, "fake"});
  report.candidates_considered = 1;
  return report;
}

/// A coordinator on a database that outlives it.
class Coordinator {
 public:
  Coordinator(const std::string& dir, ServiceOptions options) {
    SqliteOptions sqlite;
    sqlite.path = dir + "/weft.db";
    auto opened = SqliteStore::Open(sqlite);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    store = std::move(*opened);
    options.run_root = "/runs";
    service = std::make_unique<Service>(*store, Clock::System(), FakePlan, metrics, options);
    EXPECT_TRUE(service->Start().ok());
    auto listening = Server::Listen("127.0.0.1:0", *service, metrics);
    EXPECT_TRUE(listening.ok()) << listening.status().message();
    server = std::move(*listening);
    address = "127.0.0.1:" + std::to_string(server->port());
  }
  ~Coordinator() {
    service->CloseLinks();
    server.reset();
    service->Stop();
  }

  double Metric(const std::string& name) {
    double sum = 0;
    for (const auto& family : metrics.registry()->Collect()) {
      if (family.name != name) continue;
      for (const auto& metric : family.metric) {
        sum += metric.counter.value + metric.gauge.value +
               static_cast<double>(metric.histogram.sample_count);
      }
    }
    return sum;
  }

  Metrics metrics;
  std::unique_ptr<SqliteStore> store;
  std::unique_ptr<Service> service;
  std::unique_ptr<Server> server;
  std::string address;
};

/// A worker that does nothing by itself.
class FakeWorker {
 public:
  FakeWorker(const std::string& address, v1::Register hello) {
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    stream_ = stub_->Attach(&context_);
    v1::WorkerMessage message;
    *message.mutable_register_() = std::move(hello);
    stream_->Write(message);
    reader_ = std::thread([this] {
      v1::CoordinatorMessage incoming;
      while (stream_->Read(&incoming)) {
        std::lock_guard lock(mutex_);
        received_.push_back(incoming);
        changed_.notify_all();
      }
      std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    });
  }
  ~FakeWorker() {
    context_.TryCancel();
    reader_.join();
    stream_->Finish();
  }

  static v1::Register Hello(const std::string& id, int cores = 2) {
    v1::Register hello;
    hello.set_worker_id(id);
    hello.set_incarnation("i-1");
    hello.set_version(kVersion);
    hello.set_api_level(kApiLevel);
    hello.mutable_profile()->set_worker_id(id);
    hello.mutable_profile()->set_cores(cores);
    hello.mutable_profile()->set_device("cpu");
    hello.mutable_profile()->set_memory_limit_bytes(int64_t{8} << 30);
    return hello;
  }
  static v1::Register Running(v1::Register hello, const std::string& job, int64_t epoch) {
    auto* running = hello.add_running();
    running->set_job_id(job);
    running->set_epoch(epoch);
    return hello;
  }

  /// Waits for the next message of a kind, dropping those before it.
  std::optional<v1::CoordinatorMessage> Await(v1::CoordinatorMessage::MessageCase kind,
                                              milliseconds timeout = seconds(5)) {
    std::unique_lock lock(mutex_);
    auto deadline = std::chrono::steady_clock::now() + timeout;
    while (true) {
      while (!received_.empty()) {
        v1::CoordinatorMessage message = std::move(received_.front());
        received_.pop_front();
        if (message.message_case() == kind) return message;
      }
      if (ended_ || changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
        return std::nullopt;
      }
    }
  }
  void Send(const v1::WorkerMessage& message) { stream_->Write(message); }
  void Report(const std::string& job, int64_t epoch, v1::AttemptState state,
              v1::Reason reason = v1::REASON_UNSPECIFIED) {
    v1::WorkerMessage message;
    message.mutable_attempt()->set_job_id(job);
    message.mutable_attempt()->set_epoch(epoch);
    message.mutable_attempt()->set_state(state);
    message.mutable_attempt()->set_reason(reason);
    message.mutable_attempt()->set_message("said the worker");
    Send(message);
  }
  void Heartbeat(const std::string& job = "", int64_t epoch = 0, int64_t step = 0) {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_sequence(++sequence_);
    if (!job.empty()) {
      auto* running = message.mutable_heartbeat()->add_running();
      running->set_job_id(job);
      running->set_epoch(epoch);
      running->mutable_progress()->set_step(step);
    }
    Send(message);
  }
  void Log(const std::string& job, int64_t epoch, int64_t first,
           const std::vector<std::string>& lines) {
    v1::WorkerMessage message;
    message.mutable_logs()->set_job_id(job);
    message.mutable_logs()->set_epoch(epoch);
    message.mutable_logs()->set_first_sequence(first);
    for (const auto& line : lines) message.mutable_logs()->add_lines()->set_text(line);
    Send(message);
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::CoordinatorMessage> received_;
  bool ended_ = false;
  int64_t sequence_ = 0;
};

constexpr auto kRegistered = v1::CoordinatorMessage::kRegistered;
constexpr auto kStart = v1::CoordinatorMessage::kStart;
constexpr auto kStop = v1::CoordinatorMessage::kStop;
constexpr auto kAttemptAck = v1::CoordinatorMessage::kAttemptAck;
constexpr auto kLogAck = v1::CoordinatorMessage::kLogAck;

class ApiTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("weft-api-" + std::to_string(getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    options_.lease = milliseconds(1500);
    options_.heartbeat = milliseconds(200);
    Restart();
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Restart() {
    coordinator_.reset();
    coordinator_ = std::make_unique<Coordinator>(dir_, options_);
    jobs_ = v1::Coordinator::NewStub(
        grpc::CreateChannel(coordinator_->address, grpc::InsecureChannelCredentials()));
  }
  std::unique_ptr<FakeWorker> Worker(const v1::Register& hello) {
    return std::make_unique<FakeWorker>(coordinator_->address, hello);
  }

  static v1::JobSpec Spec(int ranks = 1, int max_attempts = 10) {
    v1::JobSpec spec;
    spec.set_name("tiny");
    spec.mutable_data()->add_train("/data/a.txt");
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_retry()->set_max_attempts(max_attempts);
    return spec;
  }
  grpc::Status Submit(const v1::JobSpec& spec, const std::string& request_id,
                      v1::SubmitJobResponse& response) {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_client_request_id(request_id);
    return jobs_->SubmitJob(&context, request, &response);
  }
  std::string MustSubmit(const v1::JobSpec& spec) {
    v1::SubmitJobResponse response;
    grpc::Status status = Submit(spec, "r" + std::to_string(++requests_), response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_id(id);
    v1::Job job;
    grpc::Status status = jobs_->GetJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  /// Watches until the job is in one of the states; the last update seen.
  v1::Job AwaitState(const std::string& id, std::set<v1::JobState> states,
                     seconds timeout = seconds(10)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    v1::WatchJobRequest request;
    request.set_id(id);
    auto stream = jobs_->WatchJob(&context, request);
    v1::JobUpdate update;
    while (stream->Read(&update)) {
      if (states.count(update.job().state())) {
        context.TryCancel();
        v1::JobUpdate rest;
        while (stream->Read(&rest)) {
        }
        stream->Finish();
        return update.job();
      }
    }
    ADD_FAILURE() << "job " << id << " stayed " << v1::JobState_Name(update.job().state()) << ": "
                  << stream->Finish().error_message();
    return update.job();
  }

  std::filesystem::path dir_;
  ServiceOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<v1::Coordinator::Stub> jobs_;
  int requests_ = 0;
};

TEST_F(ApiTest, AJobRunsFromSubmitToSuccess) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  std::string id = MustSubmit(Spec(2));
  EXPECT_THAT(id, testing::MatchesRegex("tiny-[0-9a-z]{5}"));
  auto start = worker->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().job_id(), id);
  EXPECT_EQ(start->start().epoch(), 1);
  EXPECT_EQ(start->start().world_size(), 2);
  EXPECT_THAT(start->start().ranks(), ElementsAre(0, 1));
  EXPECT_EQ(start->start().run_dir(), "/runs/" + id);
  EXPECT_EQ(Get(id).state(), v1::STARTING);
  worker->Report(id, 1, v1::ATTEMPT_STARTED);
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  worker->Heartbeat(id, 1, 7);
  ASSERT_TRUE(worker->Await(v1::CoordinatorMessage::kHeartbeatAck));
  EXPECT_EQ(Get(id.substr(0, 6)).progress().step(), 7);
  v1::WorkerMessage finished;
  finished.mutable_attempt()->set_job_id(id);
  finished.mutable_attempt()->set_epoch(1);
  finished.mutable_attempt()->set_state(v1::ATTEMPT_FINISHED);
  finished.mutable_attempt()->set_summary_json("{\"loss\":1}");
  worker->Send(finished);
  v1::Job job = AwaitState(id, {v1::SUCCEEDED});
  EXPECT_EQ(job.summary_json(), "{\"loss\":1}");
  EXPECT_EQ(job.progress().step(), 7);
  EXPECT_EQ(job.attempts(0).last_step(), 7);
  EXPECT_TRUE(job.has_ended_at());
}

TEST_F(ApiTest, FromSubmitToStartTakesNoTick) {
  auto worker = Worker(FakeWorker::Hello("a", 64));
  ASSERT_TRUE(worker->Await(kRegistered));
  std::vector<double> took;
  for (int i = 0; i < 20; ++i) {
    auto begin = std::chrono::steady_clock::now();
    MustSubmit(Spec());
    ASSERT_TRUE(worker->Await(kStart));
    took.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(took.begin(), took.end());
  std::printf("submit to StartAttempt: median %.1f ms, worst of %zu %.1f ms\n", took[10] * 1e3,
              took.size(), took.back() * 1e3);
  EXPECT_LT(took[10], 0.05);
}

TEST_F(ApiTest, OneRequestIdSubmittedTwiceIsOneJob) {
  v1::SubmitJobResponse first;
  v1::SubmitJobResponse second;
  ASSERT_TRUE(Submit(Spec(), "same", first).ok());
  ASSERT_TRUE(Submit(Spec(), "same", second).ok());
  EXPECT_FALSE(first.already_submitted());
  EXPECT_TRUE(second.already_submitted());
  EXPECT_EQ(first.job().id(), second.job().id());
  Restart();
  ASSERT_TRUE(Submit(Spec(), "same", second).ok());
  EXPECT_EQ(first.job().id(), second.job().id());
}

TEST_F(ApiTest, BadRequestsAreRefusedWithTheReason) {
  v1::SubmitJobResponse response;
  v1::JobSpec spec = Spec();
  spec.mutable_train()->set_precision("fp7");
  grpc::Status status = Submit(spec, "x", response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("train.precision"));
  spec = Spec();
  spec.mutable_model()->set_width(7);
  EXPECT_EQ(Submit(spec, "x", response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Submit(Spec(), "", response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_id("nobody");
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(&context, request, &job).error_code(), grpc::StatusCode::NOT_FOUND);
  MustSubmit(Spec());
  MustSubmit(Spec());
  grpc::ClientContext context2;
  request.set_id("tiny-");
  status = jobs_->GetJob(&context2, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("several jobs"));
}

TEST_F(ApiTest, AWaitingJobSaysWhatItWaitsFor) {
  std::string id = MustSubmit(Spec(2));
  v1::Job job = AwaitState(id, {v1::QUEUED});
  for (int i = 0; i < 50 && job.reason() != v1::WAITING_FOR_WORKERS; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    job = Get(id);
  }
  EXPECT_EQ(job.reason(), v1::WAITING_FOR_WORKERS);
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kStart));
  std::string next = MustSubmit(Spec(2));
  for (int i = 0; i < 50 && job.reason() != v1::WAITING_FOR_CAPACITY; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    job = Get(next);
  }
  EXPECT_EQ(job.reason(), v1::WAITING_FOR_CAPACITY);
}

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
  worker->Report(id, 1, v1::ATTEMPT_FINISHED);
  EXPECT_EQ(AwaitState(id, {v1::SUCCEEDED}).attempts_size(), 1);
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

TEST_F(ApiTest, AUserErrorIsNotRetriedAndAttemptsRunOut) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_FAILED, v1::USER_ERROR);
  v1::Job job = AwaitState(id, {v1::FAILED});
  EXPECT_EQ(job.reason(), v1::USER_ERROR);
  EXPECT_THAT(job.message(), HasSubstr("said the worker"));
  id = MustSubmit(Spec(1, 2));
  for (int epoch = 1; epoch <= 2; ++epoch) {
    ASSERT_TRUE(worker->Await(kStart));
    worker->Report(id, epoch, v1::ATTEMPT_FAILED, v1::RANK_DIED);
  }
  job = AwaitState(id, {v1::FAILED});
  EXPECT_EQ(job.reason(), v1::RETRIES_EXHAUSTED);
  EXPECT_EQ(job.attempts_size(), 2);
}

TEST_F(ApiTest, CancelStopsTheRanksAndRetryRunsTheJobAgain) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  v1::Job job;
  {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    ASSERT_TRUE(jobs_->CancelJob(&context, request, &job).ok());
    EXPECT_EQ(job.state(), v1::CANCELLING);
  }
  auto stop = worker->Await(kStop);
  ASSERT_TRUE(stop);
  EXPECT_TRUE(stop->stop().graceful());
  worker->Report(id, 1, v1::ATTEMPT_STOPPED);
  EXPECT_EQ(AwaitState(id, {v1::CANCELLED}).reason(), v1::CANCELLED_BY_USER);
  grpc::ClientContext context;
  v1::RetryJobRequest request;
  request.set_id(id);
  ASSERT_TRUE(jobs_->RetryJob(&context, request, &job).ok());
  auto start = worker->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 2);
  grpc::ClientContext again;
  EXPECT_EQ(jobs_->RetryJob(&again, request, &job).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
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
    worker->Report(id, 1, v1::ATTEMPT_FINISHED);
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

TEST_F(ApiTest, CheckpointsWorkersAndPlansAreListed) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  v1::WorkerMessage message;
  auto* checkpoint = message.mutable_checkpoint()->mutable_checkpoint();
  checkpoint->set_job_id(id);
  checkpoint->set_epoch(1);
  checkpoint->set_step(100);
  checkpoint->set_verified(true);
  worker->Send(message);
  worker->Log(id, 1, 1, {"barrier"});
  ASSERT_TRUE(worker->Await(kLogAck));
  grpc::ClientContext c1;
  v1::ListCheckpointsRequest list;
  list.set_job_id(id);
  v1::ListCheckpointsResponse checkpoints;
  ASSERT_TRUE(jobs_->ListCheckpoints(&c1, list, &checkpoints).ok());
  ASSERT_EQ(checkpoints.checkpoints_size(), 1);
  EXPECT_EQ(checkpoints.checkpoints(0).step(), 100);
  grpc::ClientContext c2;
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(jobs_->ListWorkers(&c2, {}, &workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).state(), v1::READY);
  EXPECT_THAT(workers.workers(0).job_ids(), ElementsAre(id));
  grpc::ClientContext c3;
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = Spec(2);
  v1::PlanReport report;
  ASSERT_TRUE(jobs_->PlanJob(&c3, plan, &report).ok());
  EXPECT_THAT(report.candidates(0).plan().rank_workers(), ElementsAre("a", "a"));
}

TEST_F(ApiTest, ManySubmissionsShareCommits) {
  constexpr int kThreads = 16;
  constexpr int kEach = 25;
  auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  std::atomic<int> accepted = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        v1::SubmitJobResponse response;
        if (Submit(Spec(), std::to_string(t) + "-" + std::to_string(i), response).ok()) ++accepted;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(accepted, kThreads * kEach);
  EXPECT_EQ(coordinator_->Metric("weft_coord_jobs_submitted_total"), kThreads * kEach);
  std::printf("%d submissions over %d connections' worth of threads: %.0f/s\n", accepted.load(),
              kThreads, accepted / took.count());
  grpc::ClientContext context;
  v1::ListJobsRequest request;
  request.set_page_size(300);
  v1::ListJobsResponse page;
  ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
  EXPECT_EQ(page.jobs_size(), 300);
  grpc::ClientContext context2;
  request.set_page_token(page.next_page_token());
  v1::ListJobsResponse rest;
  ASSERT_TRUE(jobs_->ListJobs(&context2, request, &rest).ok());
  EXPECT_EQ(rest.jobs_size(), 100);
  EXPECT_EQ(rest.next_page_token(), "");
}

}  // namespace
}  // namespace weft::coordinator
