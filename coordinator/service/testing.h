// For tests of the service without its transport: workers that record orders as words, a planner
// whose answers are plain, and a clock that does not advance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/env.h"
#include "common/failpoint.h"
#include "common/version.h"
#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Records what it receives, as words.
class FakeLink : public WorkerLink {
 public:
  void SendRegistered(double, double, const std::vector<AttemptKey>& adopted) override {
    Note("registered " + std::to_string(adopted.size()));
  }
  void Refuse(const std::string& why) override { Note("refused " + why); }
  StartOrder last_start() {
    std::lock_guard lock(mutex_);
    return last_start_;
  }
  void AckHeartbeat(int64_t sequence) override { Note("heartbeat " + std::to_string(sequence)); }
  void Start(const StartOrder& order) override {
    {
      std::lock_guard lock(mutex_);
      last_start_ = order;
    }
    Note("start " + order.job_id + " " + std::to_string(order.epoch) + " to step " +
         std::to_string(order.spec.train.steps));
  }
  void Stop(const std::string& job, int64_t epoch, bool graceful) override {
    Note("stop " + job + " " + std::to_string(epoch) + (graceful ? " gracefully" : ""));
  }
  void SetMembership(const MembershipOrder& order) override {
    std::string note = "membership " + order.job_id + " " + std::to_string(order.number) + ":";
    for (const int64_t rank : order.ranks) note += " " + std::to_string(rank);
    if (!order.gone.empty()) note += ", gone:";
    for (const int64_t rank : order.gone) note += " " + std::to_string(rank);
    Note(note);
  }
  void AckReport(const std::string& job, const PlacementReport& report) override {
    Note("ack " + job + " " + std::to_string(report.epoch));
  }
  void AckLogs(const LogAppend&, int64_t position) override {
    Note("logs " + std::to_string(position));
  }
  void ReplyStore(int64_t, const Result<std::string>&) override { Note("store"); }
  void Profile(int64_t request_id, const AttemptKey& attempt, int64_t steps) override {
    Note("profile " + std::to_string(request_id) + " " + attempt.job_id + " " +
         std::to_string(attempt.epoch) + " " + std::to_string(steps));
  }
  void MeasureLink(const LinkOrder& order) override {
    Note("measure " + std::to_string(order.request_id) +
         (order.host.empty() ? "" : " " + order.host + ":" + std::to_string(order.port)));
  }
  void CheckHealth(int64_t request_id, double) override {
    Note("check " + std::to_string(request_id));
  }
  void Close() override { Note("closed"); }

  /// Waits (real time) until a note begins so; whether it came.
  bool Saw(const std::string& beginning, milliseconds timeout = seconds(5)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return std::any_of(notes_.begin(), notes_.end(),
                         [&](const auto& note) { return note.rfind(beginning, 0) == 0; });
    });
  }

  /// How many notes begin so.
  int64_t Count(const std::string& beginning) {
    std::lock_guard lock(mutex_);
    return std::count_if(notes_.begin(), notes_.end(),
                         [&](const auto& note) { return note.rfind(beginning, 0) == 0; });
  }

 private:
  void Note(const std::string& note) {
    std::lock_guard lock(mutex_);
    notes_.push_back(note);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> notes_;
  StartOrder last_start_;
};

inline ServiceOptions RetriesAtOnce() {
  ServiceOptions options;
  options.retry.first_seconds = 0;
  options.health.limit = {};    // these workers know nothing of their machines
  options.rest_after_pass = 0;  // a test may move the clock in the midst of one
  return options;
}

/// The ranks that the job wants, or if it leaves that open one for each worker, on a worker each. A
/// step takes a second over their number.
inline Result<PlanReport> OneRankEach(const JobSpec& spec, const ClusterProfile& cluster) {
  Plan plan;
  const int64_t limit = spec.resources.memory_per_rank_bytes;
  plan.prediction.memory_per_rank.activations_bytes = limit > 0 ? limit : 2000;
  if (spec.resources.device == "cuda") plan.device = "cuda";
  const int64_t ranks =
      spec.resources.ranks > 0 ? spec.resources.ranks : std::ssize(cluster.workers);
  for (const auto& worker : cluster.workers) {
    if (plan.device == "cuda" && worker.devices.empty()) continue;
    if (std::ssize(plan.rank_workers) < ranks) {
      plan.rank_workers.push_back(worker.worker_id);
      if (plan.device == "cuda") plan.rank_devices.push_back(worker.devices[0].index);
    }
  }
  plan.mesh.data = ranks;
  plan.prediction.step_seconds = 1 / static_cast<double>(ranks);
  bool fits = std::ssize(plan.rank_workers) == ranks;
  PlanReport report;
  report.candidates.push_back({plan, fits, fits, "too few workers"});
  return report;
}

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    SqliteOptions sqlite;
    sqlite.path = ":memory:";
    store_ = std::move(*SqliteStore::Open(sqlite));
    StartService();
  }
  /// A new one on the same store: the one before was killed.
  void StartService() {
    service_.reset();
    service_ = std::make_unique<Service>(*store_, clock_, planner_, metrics_, options_);
    ASSERT_TRUE(service_->Start().ok());
  }
  void TearDown() override {
    ASSERT_TRUE(SetFailpoints("").ok());
    service_.reset();
  }
  /// With this many GPUs; says that it has the ranks of `running`.
  std::shared_ptr<FakeLink> Attach(const std::string& id, int gpus = 0,
                                   const std::vector<RunningAttempt>& running = {},
                                   const std::string& incarnation = "i") {
    auto link = std::make_shared<FakeLink>();
    WorkerHello hello;
    hello.worker_id = id;
    hello.incarnation = incarnation;
    hello.running = running;
    hello.version = kVersion;
    hello.api_level = kApiLevel;
    hello.profile.cores = std::max(1, gpus);
    hello.profile.memory_limit_bytes = 1 << 30;
    for (int index = 0; index < gpus; ++index) {
      hello.profile.device = "cuda";
      hello.profile.devices.emplace_back().index = index;
      hello.profile.devices.back().memory_limit_bytes = 1 << 30;
    }
    service_->Attach(link, hello);
    EXPECT_TRUE(link->Saw("registered"));
    return link;
  }
  Result<SubmitResult> Submit(int64_t ranks, const std::string& import_path = "",
                              int64_t try_plans = 1) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.resources.ranks = ranks;
    if (ranks > 0) spec.train.global_batch = 8 * ranks;
    spec.resources.try_plans = try_plans;
    spec.model.import_path = spec.data.tokenizer.path = import_path;
    std::promise<Result<SubmitResult>> promise;
    service_->Submit(spec, "request-" + std::to_string(++requests_),
                     [&](Result<SubmitResult> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  /// Moves the clock, with the given workers sending heartbeats every second.
  void Pass(int duration, const std::vector<std::shared_ptr<FakeLink>>& alive,
            const std::vector<RunningAttempt>& running = {}) {
    for (int i = 0; i < duration; ++i) {
      clock_.Advance(seconds(1));
      for (const auto& link : alive) {
        int64_t sequence = ++heartbeats_;
        service_->Heartbeat(link, sequence, running, false);
        ASSERT_TRUE(link->Saw("heartbeat " + std::to_string(sequence)));
      }
      service_->Wake();
    }
  }
  /// The worker says that the checkpoint of that step is verified.
  void SaveAt(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch,
              int64_t step) {
    const std::string path =
        JoinPath(service_->Get(id)->job.run_dir, "checkpoints/step-" + std::to_string(step));
    service_->ReportCheckpoint(link, {id, step, epoch, path, 1, true, 0}, std::nullopt);
  }
  /// All steps of the job are done, and saved: the ranks of the worker have ended.
  void FinishAttempt(const std::shared_ptr<FakeLink>& link, const std::string& id,
                     int64_t epoch = 1, const std::string& summary_json = "") {
    SaveAt(link, id, epoch, service_->Get(id)->job.spec.train.steps);
    service_->Report(link, id,
                     {"", epoch, PlacementEvent::kFinished, Reason::kNone, "", summary_json});
  }
  /// Why the job is where it is.
  JobExplanation Explain(const std::string& id) {
    std::promise<Result<JobExplanation>> promise;
    service_->Explain(id, [&](Result<JobExplanation> why) { promise.set_value(std::move(why)); });
    Result<JobExplanation> why = promise.get_future().get();
    EXPECT_TRUE(why.ok()) << why.status().message();
    return why.ok() ? *std::move(why) : JobExplanation();
  }
  JobState AwaitState(const std::string& id, JobState state) {
    JobState now = service_->Get(id)->job.state;
    for (int i = 0; i < 1000 && now != state; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      now = service_->Get(id)->job.state;
    }
    return now;
  }

  /// Never stops.
  static StoppablePlanFunction AtOnce(PlanFunction plan) {
    return [plan = std::move(plan)](const JobSpec& spec, const ClusterProfile& cluster,
                                    const std::stop_token&) { return plan(spec, cluster); };
  }
  /// The answer to PlanFor.
  Result<PlanReport> PlanFor(const JobSpec& spec,
                             const std::optional<ClusterProfile>& cluster = std::nullopt) {
    std::promise<Result<PlanReport>> promise;
    service_->PlanFor(spec, cluster, 1,
                      [&](Result<PlanReport> report) { promise.set_value(std::move(report)); });
    return promise.get_future().get();
  }

  StoppablePlanFunction planner_ = AtOnce(OneRankEach);
  /// Failed jobs are tried again at once, as this clock does not advance; machines are not checked.
  ServiceOptions options_ = RetriesAtOnce();
  ManualClock clock_;
  Metrics metrics_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Service> service_;
  int requests_ = 0;
  int64_t heartbeats_ = 0;
};

}  // namespace weft::coordinator
