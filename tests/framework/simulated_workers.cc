#include "tests/framework/simulated_workers.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/rng.h"
#include "common/version.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// A heartbeat that is not answered within this many periods is forgotten.
constexpr size_t kMostUnanswered = 16;
constexpr int64_t kMemoryBytes = int64_t{8} << 30;

}  // namespace

/// One thread that runs tasks at their time, for all workers.
class SimulatedWorkers::Timers {
 public:
  Timers() : thread_([this] { Run(); }) {}
  ~Timers() { Stop(); }
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  void At(Clock::time_point time, std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace(time, std::move(task));
    }
    changed_.notify_one();
  }

  /// Drops what has not run.
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (tasks_.empty()) {
        changed_.wait(lock);
      } else if (tasks_.begin()->first > Clock::now()) {
        changed_.wait_until(lock, tasks_.begin()->first);
      } else {
        const std::function<void()> task = std::move(tasks_.begin()->second);
        tasks_.erase(tasks_.begin());
        lock.unlock();
        task();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

struct SimulatedWorkers::Shared {
  Options options;
  std::atomic<int64_t> attached = 0;
  std::atomic<int64_t> broken = 0;
  std::atomic<int64_t> ended = 0;
  std::mutex mutex;  ///< Guards what follows.
  std::condition_variable changed;
  int64_t open_streams = 0;
  std::vector<double> round_trips;
  Timers timers;
};

/// One connection of one worker to the coordinator. Lives until gRPC is done with it.
class SimulatedWorkers::Stream
    : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  Stream(Shared& shared, std::shared_ptr<Worker> worker)
      : shared_(shared), worker_(std::move(worker)) {
    const std::lock_guard lock(shared_.mutex);
    ++shared_.open_streams;
  }

  /// `self` keeps this object until OnDone.
  void Begin(v1::WorkerService::Stub& stub, std::shared_ptr<Stream> self, v1::Register hello) {
    self_ = std::move(self);
    stub.async()->Attach(&context_, this);
    v1::WorkerMessage message;
    *message.mutable_register_() = std::move(hello);
    AddHold();  // for what other threads write
    Send(std::move(message));
    StartRead(&incoming_);
    StartCall();
  }

  void Send(v1::WorkerMessage message) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    // After a failure the rest stays, so that nothing is written any more.
    if (!ok) return;
    outgoing_.pop_front();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Shared& shared_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Stream> self_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  std::mutex mutex_;
  std::deque<v1::WorkerMessage> outgoing_;
  bool over_ = false;  ///< Nothing comes any more, and nothing is written.
};

class SimulatedWorkers::Worker : public std::enable_shared_from_this<Worker> {
 public:
  Worker(Shared& shared, int64_t index)
      : shared_(shared),
        id_(IdOf(index)),
        random_({shared.options.seed, 0, static_cast<uint32_t>(index)}) {
    grpc::ChannelArguments arguments;
    // A connection of its own, and no dialling by itself.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    stub_ = v1::WorkerService::NewStub(grpc::CreateCustomChannel(
        shared.options.address, grpc::InsecureChannelCredentials(), arguments));
  }

  void Dial() {
    const std::lock_guard lock(mutex_);
    if (dead_) return;
    GiveUpAfterLease();
    v1::Register hello;
    hello.set_worker_id(id_);
    hello.set_incarnation("simulated");
    hello.set_version(kVersion);
    hello.set_api_level(kApiLevel);
    v1::WorkerProfile& profile = *hello.mutable_profile();
    profile.set_worker_id(id_);
    profile.set_cores(shared_.options.cores);
    profile.set_device("cpu");
    profile.set_memory_bytes(kMemoryBytes);
    profile.set_memory_limit_bytes(kMemoryBytes);
    for (const auto& [key, attempt] : attempts_) {
      // Reports carry no progress: that of an attempt whose end may not be known goes before.
      const bool reported = attempt.ended && attempt.reports.empty();
      if (!reported) AddRunning(key, attempt, *hello.add_running());
    }
    stream_ = std::make_shared<Stream>(shared_, shared_from_this());
    stream_->Begin(*stub_, stream_, std::move(hello));
  }

  void Die() {
    const std::lock_guard lock(mutex_);
    dead_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }

  void Take(const v1::CoordinatorMessage& message) {
    const std::lock_guard lock(mutex_);
    if (stream_ == nullptr) return;
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kRegistered:
        Register(message.registered());
        break;
      case v1::CoordinatorMessage::kHeartbeatAck:
        Answered(message.heartbeat_ack().sequence());
        break;
      case v1::CoordinatorMessage::kStart:
        Start(message.start());
        break;
      case v1::CoordinatorMessage::kStop:
        End({message.stop().job_id(), message.stop().epoch()}, v1::ATTEMPT_STOPPED);
        break;
      case v1::CoordinatorMessage::kCheckHealth:
        FindNothing(message.check_health().request_id());
        break;
      case v1::CoordinatorMessage::kAttemptAck:
        Acknowledged({message.attempt_ack().job_id(), message.attempt_ack().epoch()},
                     message.attempt_ack().state());
        break;
      default:
        break;
    }
  }

  /// The stream is over.
  void Ended() {
    const std::lock_guard lock(mutex_);
    stream_.reset();
    if (std::exchange(registered_, false)) --shared_.attached;
    if (dead_) return;
    ++shared_.broken;
    shared_.timers.At(Clock::now() + shared_.options.redial_after,
                      [self = shared_from_this()] { self->Dial(); });
  }

 private:
  using Key = std::pair<std::string, int64_t>;  ///< Job and epoch.
  struct Attempt {
    bool ended = false;
    int64_t steps = 0;                       ///< It is to make.
    int64_t step = 0;                        ///< It has made, as it says.
    std::vector<v1::AttemptReport> reports;  ///< Not acknowledged yet, oldest first.
  };

  // All below: mutex_ is held.
  void Register(const v1::Registered& registered) {
    if (!registered.refused().empty()) return;
    if (!std::exchange(registered_, true)) ++shared_.attached;
    lease_ = FromSeconds(registered.lease_seconds());
    period_ = FromSeconds(registered.heartbeat_seconds());
    heard_at_ = Clock::now();
    unanswered_.clear();
    std::map<Key, bool> adopted;
    for (const v1::AttemptKey& key : registered.adopted()) adopted[{key.job_id(), key.epoch()}];
    for (auto& [key, attempt] : attempts_) {
      if (!attempt.ended && !adopted.contains(key)) {
        attempt.ended = true;
        attempt.reports.clear();
      }
      for (const v1::AttemptReport& report : attempt.reports) Say(report);
    }
    ++generation_;
    Beat(generation_);
  }

  void SendHeartbeat() {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_sequence(++sequence_);
    for (const auto& [key, attempt] : attempts_) {
      if (!attempt.ended) AddRunning(key, attempt, *message.mutable_heartbeat()->add_running());
    }
    unanswered_.emplace_back(sequence_, Clock::now());
    if (unanswered_.size() > kMostUnanswered) unanswered_.pop_front();
    stream_->Send(std::move(message));
  }

  void Beat(int64_t generation) {
    if (!registered_ || generation != generation_) return;
    SendHeartbeat();
    shared_.timers.At(Clock::now() + period_, [self = shared_from_this(), generation] {
      const std::lock_guard lock(self->mutex_);
      self->Beat(generation);
    });
  }

  void Answered(int64_t sequence) {
    heard_at_ = Clock::now();
    while (!unanswered_.empty() && unanswered_.front().first < sequence) unanswered_.pop_front();
    if (unanswered_.empty() || unanswered_.front().first != sequence) return;
    const std::chrono::duration<double> took = heard_at_ - unanswered_.front().second;
    unanswered_.pop_front();
    const std::lock_guard lock(shared_.mutex);
    shared_.round_trips.push_back(took.count());
  }

  /// The machine is in order.
  void FindNothing(int64_t request_id) {
    if (!stream_) return;
    v1::WorkerMessage message;
    message.mutable_health()->set_request_id(request_id);
    message.mutable_health()->set_device(-1);
    stream_->Send(std::move(message));
  }

  void Start(const v1::StartAttempt& start) {
    const Key key{start.job_id(), start.epoch()};
    const auto [attempt, added] = attempts_.try_emplace(key);
    if (!added) return;  // delivered twice
    attempt->second.steps = start.spec().train().steps();
    Report(key, v1::ATTEMPT_STARTED);
    Report(key, v1::ATTEMPT_TRAINING);
    const bool fails = random_.Uniform() < shared_.options.failure_share;
    shared_.timers.At(Clock::now() + shared_.options.train_for,
                      [self = shared_from_this(), key, fails] {
                        const std::lock_guard lock(self->mutex_);
                        self->End(key, fails ? v1::ATTEMPT_FAILED : v1::ATTEMPT_FINISHED);
                      });
  }

  void End(const Key& key, v1::AttemptState state) {
    Attempt& attempt = attempts_[key];  // one that was never started is not started any more
    if (attempt.ended) return;
    if (state == v1::ATTEMPT_FINISHED) {
      attempt.step = attempt.steps;
      if (registered_) SendHeartbeat();
    }
    attempt.ended = true;
    ++shared_.ended;
    Report(key, state);
  }

  void Report(const Key& key, v1::AttemptState state) {
    v1::AttemptReport report;
    report.set_job_id(key.first);
    report.set_epoch(key.second);
    report.set_state(state);
    if (state == v1::ATTEMPT_FAILED) report.set_reason(v1::RANK_DIED);
    attempts_[key].reports.push_back(report);
    if (registered_) Say(report);
  }

  void Say(const v1::AttemptReport& report) {
    v1::WorkerMessage message;
    *message.mutable_attempt() = report;
    stream_->Send(std::move(message));
  }

  void Acknowledged(const Key& key, v1::AttemptState state) {
    const auto it = attempts_.find(key);
    if (it == attempts_.end()) return;
    std::erase_if(it->second.reports,
                  [&](const v1::AttemptReport& report) { return report.state() == state; });
  }

  /// Its ranks would have been killed by now.
  void GiveUpAfterLease() {
    if (Clock::now() - heard_at_ < lease_) return;
    for (auto& [key, attempt] : attempts_) {
      if (attempt.ended) continue;
      attempt.ended = true;
      attempt.reports.clear();
    }
  }

  static void AddRunning(const Key& key, const Attempt& attempt, v1::RunningAttempt& running) {
    running.set_job_id(key.first);
    running.set_epoch(key.second);
    if (attempt.step > 0) running.mutable_progress()->set_step(attempt.step);
  }

  Shared& shared_;
  const std::string id_;
  PhiloxStream random_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::mutex mutex_;
  std::shared_ptr<Stream> stream_;
  bool registered_ = false;
  bool dead_ = false;
  int64_t sequence_ = 0;
  int64_t generation_ = 0;  ///< Of registrations: the timer of an older one beats no more.
  Clock::duration lease_{0};
  Clock::duration period_{0};
  Clock::time_point heard_at_;
  std::deque<std::pair<int64_t, Clock::time_point>> unanswered_;  ///< Heartbeats.
  std::map<Key, Attempt> attempts_;
};

void SimulatedWorkers::Stream::OnReadDone(bool ok) {
  if (ok) {
    worker_->Take(incoming_);
    StartRead(&incoming_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  RemoveHold();
}

void SimulatedWorkers::Stream::OnDone(const grpc::Status&) {
  worker_->Ended();
  Shared& shared = shared_;
  self_.reset();  // this object is gone from here on, unless the worker still holds it
  const std::lock_guard lock(shared.mutex);
  --shared.open_streams;
  shared.changed.notify_all();
}

SimulatedWorkers::SimulatedWorkers(Options options) : shared_(std::make_unique<Shared>()) {
  shared_->options = std::move(options);
  const Options& wanted = shared_->options;
  const Clock::time_point begin = Clock::now();
  for (int64_t i = 0; i < wanted.count; ++i) {
    workers_.push_back(std::make_shared<Worker>(*shared_, i));
    shared_->timers.At(begin + wanted.attach_over * i / wanted.count,
                       [worker = workers_.back()] { worker->Dial(); });
  }
}

SimulatedWorkers::~SimulatedWorkers() {
  shared_->timers.Stop();
  for (const std::shared_ptr<Worker>& worker : workers_) worker->Die();
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return shared_->open_streams == 0; });
}

int64_t SimulatedWorkers::attached() const {
  return shared_->attached;
}

int64_t SimulatedWorkers::broken_streams() const {
  return shared_->broken;
}

int64_t SimulatedWorkers::ended_attempts() const {
  return shared_->ended;
}

void SimulatedWorkers::Kill(int64_t index) {
  workers_[static_cast<size_t>(index)]->Die();
}

std::vector<double> SimulatedWorkers::TakeRoundTrips() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->round_trips, {});
}

}  // namespace weft::testing
