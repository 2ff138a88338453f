// For tests of the coordinator as its clients see it: a real server on a loopback port, and workers
// that speak the stream by hand.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/version.h"
#include "coordinator/api/server.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Plans resources.ranks ranks of one thread, round and round over the workers.
inline Result<PlanReport> FakePlan(const JobSpec& spec, const ClusterProfile& cluster) {
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
  Coordinator(const std::string& dir, ServiceOptions options, StoppablePlanFunction plan,
              const ServerSecurity& security) {
    SqliteOptions sqlite;
    sqlite.path = dir + "/weft.db";
    auto opened = SqliteStore::Open(sqlite);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    store = std::move(*opened);
    options.run_root = "/runs";
    service = std::make_unique<Service>(*store, Clock::System(), std::move(plan), metrics, options);
    EXPECT_TRUE(service->Start().ok());
    auto listening = Server::Listen("127.0.0.1:0", *service, metrics, {}, security);
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
  FakeWorker(const std::string& address, v1::Register hello)
      : FakeWorker(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
                   std::move(hello)) {}
  FakeWorker(const std::shared_ptr<grpc::Channel>& channel, v1::Register hello) {
    stub_ = v1::WorkerService::NewStub(channel);
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
  /// Whether its stream is over.
  bool Ended() {
    std::lock_guard lock(mutex_);
    return ended_;
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
    options_.retry.first_seconds = 0;
    options_.health.limit = {};  // these workers know nothing of their machines
    // Tests of other things call without one.
    security_.access.needs_deadlines = false;
    Prepare();
    Restart();
  }
  /// What the server needs before it starts.
  virtual void Prepare() {}
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Restart() {
    coordinator_.reset();
    coordinator_ = std::make_unique<Coordinator>(dir_, options_, plan_, security_);
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
  /// All steps are done: the ranks of the worker have ended.
  void Finish(FakeWorker& worker, const std::string& id, int64_t epoch) {
    worker.Heartbeat(id, epoch, Get(id).spec().train().steps());
    worker.Report(id, epoch, v1::ATTEMPT_FINISHED);
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
  ServerSecurity security_;
  StoppablePlanFunction plan_ = [](const JobSpec& spec, const ClusterProfile& cluster,
                                   const std::stop_token&) { return FakePlan(spec, cluster); };
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<v1::Coordinator::Stub> jobs_;
  int requests_ = 0;
};

}  // namespace weft::coordinator
