// Many clients call a coordinator that is killed and started again all the while. What they were
// answered must be what one copy of each job, changed by one call at a time, would have answered.
//   WEFT_HISTORY_OPERATIONS=1000000 chaos_history_test    more remote calls than CTest makes
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>

#include "common/rng.h"
#include "tests/chaos/failpoints.h"
#include "tests/chaos/history.h"
#include "tests/framework/cluster.h"
#include "tests/framework/simulated_workers.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Call = Operation::Call;
using Outcome = Operation::Outcome;

constexpr int kClients = 8;
constexpr size_t kActiveJobs = 12;
constexpr int64_t kFewCalls = 3000;
constexpr int kPriorities = 3;
constexpr int32_t kListed = 10;

int64_t CallsWanted() {
  const char* text = std::getenv("WEFT_HISTORY_OPERATIONS");
  return text == nullptr ? kFewCalls : std::atoll(text);
}

int64_t Now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

ModelState Seen(v1::JobState state) {
  for (int i = 0; i < kModelStates; ++i) {
    if (Name(static_cast<ModelState>(i)) == v1::JobState_Name(state)) {
      return static_cast<ModelState>(i);
    }
  }
  ADD_FAILURE() << "a job is " << v1::JobState_Name(state);
  return ModelState::kAbsent;
}

bool IsUnanswered(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED ||
         status.error_code() == grpc::StatusCode::ABORTED;
}

/// All jobs of a run, by the number that their request id has, and what happened to each.
class Jobs {
 public:
  /// A job to call about, perhaps a new one, whose id nobody knows yet.
  int64_t Pick(PhiloxStream& random) {
    const std::lock_guard lock(mutex_);
    if (active_.empty() || random.Below(12) == 0) {
      active_.push_back(next_++);
      if (active_.size() > kActiveJobs) active_.erase(active_.begin());
      return active_.back();
    }
    return active_[random.Below(active_.size())];
  }
  std::optional<std::string> IdOf(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto it = ids_.find(number);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  /// A submission was answered with this job.
  void SetId(int64_t number, const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto [it, first] = ids_.emplace(number, id);
    EXPECT_EQ(it->second, id) << "request " << number << " made two jobs";
    if (first) {
      EXPECT_TRUE(numbers_.emplace(id, number).second) << "two requests made job " << id;
    }
  }
  std::optional<int64_t> NumberOf(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto it = numbers_.find(id);
    return it == numbers_.end() ? std::nullopt : std::optional(it->second);
  }
  /// False: the job is being deleted, or was. Its request would make another one.
  bool BeginSubmit(int64_t number) {
    const std::lock_guard lock(mutex_);
    if (deleted_.contains(number)) return false;
    ++submitting_[number];
    return true;
  }
  void EndSubmit(int64_t number, bool answered) {
    const std::lock_guard lock(mutex_);
    // One that was not answered may take effect at any time: its job is never deleted.
    if (answered) --submitting_[number];
  }
  /// Whether the job may be deleted. Nobody submits it again then.
  bool BeginDelete(int64_t number) {
    const std::lock_guard lock(mutex_);
    if (submitting_[number] > 0) return false;
    deleted_.insert(number);
    return true;
  }
  /// A request goes out.
  void CountCall() { ++calls_; }
  int64_t calls() const { return calls_; }
  void Note(int64_t number, const Operation& operation) {
    const std::lock_guard lock(mutex_);
    histories_[number].push_back(operation);
  }
  /// When nobody calls any more.
  const std::map<int64_t, std::vector<Operation>>& histories() const { return histories_; }
  const std::map<std::string, int64_t>& numbers() const { return numbers_; }
  const std::set<int64_t>& deleted() const { return deleted_; }

 private:
  std::mutex mutex_;
  int64_t next_ = 0;
  std::vector<int64_t> active_;
  std::map<int64_t, std::string> ids_;
  std::map<std::string, int64_t> numbers_;
  std::map<int64_t, int64_t> submitting_;  ///< Calls that were not answered, or not yet.
  std::set<int64_t> deleted_;              ///< Or a client tried to.
  std::map<int64_t, std::vector<Operation>> histories_;
  std::atomic<int64_t> calls_ = 0;
};

/// One who calls, one call after the other.
class Client {
 public:
  Client(Jobs& jobs, const std::string& address, uint32_t number, v1::JobSpec spec)
      : jobs_(jobs), random_({7, 0, number}), spec_(std::move(spec)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void CallOnce() {
    const int64_t number = jobs_.Pick(random_);
    const std::optional<std::string> id = jobs_.IdOf(number);
    const uint64_t choice = random_.Below(100);
    using Stub = v1::Coordinator::Stub;
    if ((!id || choice < 4) && jobs_.BeginSubmit(number)) {
      Submit(number);
    } else if (!id || choice < 8) {
      List(kListed, "");
    } else if (choice < 22) {
      Ask<v1::CancelJobRequest>(number, *id, Call::kCancel, &Stub::CancelJob);
    } else if (choice < 38) {
      Ask<v1::RetryJobRequest>(number, *id, Call::kRetry, &Stub::RetryJob);
    } else if (choice < 49) {
      Ask<v1::PauseJobRequest>(number, *id, Call::kPause, &Stub::PauseJob);
    } else if (choice < 62) {
      Ask<v1::ResumeJobRequest>(number, *id, Call::kResume, &Stub::ResumeJob);
    } else if (choice < 72) {
      v1::UpdateJobRequest request;
      request.set_priority(static_cast<int64_t>(random_.Below(kPriorities)));
      Ask(number, *id, Call::kUpdate, &Stub::UpdateJob, request);
    } else if (choice < 76 && jobs_.BeginDelete(number)) {
      Ask<v1::DeleteJobRequest>(number, *id, Call::kDelete, &Stub::DeleteJob);
    } else {
      Ask<v1::GetJobRequest>(number, *id, Call::kLook, &Stub::GetJob);
    }
  }

  /// Looks at all jobs, when nobody else calls any more; also at those that are not there.
  void ListAll() {
    Operation look{Call::kLook, Outcome::kDone, Now()};
    std::string page;
    do {
      const v1::ListJobsResponse response = List(1000, page);
      page = response.next_page_token();
      for (const v1::Job& job : response.jobs()) {
        EXPECT_TRUE(stored_.insert(job.id()).second) << job.id() << " is listed twice";
      }
    } while (!page.empty());
    look.end = Now();
    for (const auto& [id, number] : jobs_.numbers()) {
      if (!stored_.contains(id)) jobs_.Note(number, look);
    }
  }
  const std::set<std::string>& stored() const { return stored_; }

 private:
  void Submit(int64_t number) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec_;
    request.set_client_request_id("request-" + std::to_string(number));
    v1::SubmitJobResponse response;
    Operation operation{Call::kSubmit, Outcome::kDone, Now()};
    grpc::ClientContext context;
    SetDeadline(context);
    jobs_.CountCall();
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    operation.end = Now();
    jobs_.EndSubmit(number, !IsUnanswered(status));
    if (!Answered(number, operation, status)) return;
    ASSERT_TRUE(status.ok()) << status.error_message();
    jobs_.Note(number, operation);
    jobs_.SetId(number, response.job().id());
    NoteLook(number, operation, response.job());
  }

  template <class Request, class Response>
  void Ask(int64_t number, const std::string& id, Call call,
           grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Response*),
           Request request = {}) {
    request.set_id(id);
    Response response;
    Operation operation{call, Outcome::kDone, Now()};
    if constexpr (std::is_same_v<Request, v1::UpdateJobRequest>) {
      operation.priority = request.priority();
    }
    grpc::ClientContext context;
    SetDeadline(context);
    jobs_.CountCall();
    const grpc::Status status = (*stub_.*method)(&context, request, &response);
    operation.end = Now();
    if (!Answered(number, operation, status)) return;
    if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      operation.outcome = Outcome::kRefused;
    } else if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      operation.outcome = Outcome::kMissing;
    } else {
      ASSERT_TRUE(status.ok()) << status.error_message();
      if constexpr (std::is_same_v<Response, v1::Job>) NoteLook(number, operation, response);
    }
    if (call != Call::kLook) {
      jobs_.Note(number, operation);
    } else if (operation.outcome == Outcome::kMissing) {
      jobs_.Note(number, {Call::kLook, Outcome::kDone, operation.start, operation.end});
    }
  }

  v1::ListJobsResponse List(int32_t size, const std::string& page) {
    v1::ListJobsRequest request;
    request.set_page_size(size);
    request.set_page_token(page);
    v1::ListJobsResponse response;
    Operation operation{Call::kLook, Outcome::kDone, Now()};
    grpc::ClientContext context;
    SetDeadline(context);
    jobs_.CountCall();
    const grpc::Status status = stub_->ListJobs(&context, request, &response);
    operation.end = Now();
    if (!status.ok()) {
      AwaitServer();
      return {};
    }
    for (const v1::Job& job : response.jobs()) {
      const std::optional<int64_t> number = jobs_.NumberOf(job.id());
      if (number) NoteLook(*number, operation, job);
    }
    return response;
  }

  /// What a call shows of a job was there at some time during the call.
  void NoteLook(int64_t number, const Operation& call, const v1::Job& job) {
    jobs_.Note(number, {Call::kLook, Outcome::kDone, call.start, call.end, Seen(job.state()),
                        job.priority()});
  }

  /// False when the call may have taken effect or not; waits for the server then.
  bool Answered(int64_t number, Operation operation, const grpc::Status& status) {
    if (!IsUnanswered(status)) return true;
    operation.outcome = Outcome::kUnknown;
    if (operation.call != Call::kLook) jobs_.Note(number, operation);
    AwaitServer();
    return false;
  }

  void AwaitServer() {
    EXPECT_TRUE(Eventually(
        [&] {
          grpc::ClientContext context;
          SetDeadline(context);
          // A call that fails at once waits for no connection that is being made, and gRPC looks
          // after it by itself only once in five seconds.
          context.set_wait_for_ready(true);
          v1::GetVersionResponse response;
          return stub_->GetVersion(&context, {}, &response).ok();
        },
        seconds(20)));
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  }

  Jobs& jobs_;
  PhiloxStream random_;
  const v1::JobSpec spec_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::set<std::string> stored_;
};

/// Kills the coordinator again and again: from outside, or at a failpoint.
class Killer {
 public:
  Killer(Cluster& cluster, const Jobs& jobs)
      : cluster_(cluster), jobs_(jobs), thread_([this] { Run(); }) {}
  /// Leaves a coordinator that lives.
  int Stop() {
    stopping_ = true;
    thread_.join();
    cluster_.coordinator().Kill();
    cluster_.StartCoordinator();
    return deaths_;
  }

 private:
  void Run() {
    PhiloxStream random({11, 0, 0});
    const std::vector<std::string> points = CoordinatorFailpoints();
    while (!stopping_) {
      // However slow the machine is, something happens in each life.
      const int64_t until = jobs_.calls() + 50 + static_cast<int64_t>(random.Below(400));
      while (!stopping_ && cluster_.coordinator().Alive() && jobs_.calls() < until) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      if (stopping_) return;
      cluster_.coordinator().Kill();
      ++deaths_;
      Environment environment;
      if (random.Below(2) == 0) {
        environment["WEFT_FAILPOINTS"] =
            points[random.Below(points.size())] + "=crash@" + std::to_string(1 + random.Below(60));
      }
      do {
        cluster_.StartCoordinator(environment);
        environment.clear();  // at its second try it may not die at once
      } while (!cluster_.coordinator().Alive());
    }
  }

  Cluster& cluster_;
  const Jobs& jobs_;
  std::atomic<bool> stopping_ = false;
  int deaths_ = 0;
  std::thread thread_;
};

void CallAndCheck(int64_t workers) {
  Cluster cluster({.workers = 0});
  v1::JobSpec spec = cluster.TinyJob("history", 10, 1);
  spec.mutable_retry()->set_max_attempts(2);
  std::optional<SimulatedWorkers> simulated;
  if (workers > 0) {
    simulated.emplace(SimulatedWorkers::Options{.address = cluster.address(),
                                                .count = workers,
                                                .train_for = milliseconds(20),
                                                .failure_share = 0.3});
  }
  Jobs jobs;
  const int64_t wanted = CallsWanted();
  const auto begin = std::chrono::steady_clock::now();
  Killer killer(cluster, jobs);
  {
    std::vector<std::jthread> clients;
    for (uint32_t i = 0; i < kClients; ++i) {
      clients.emplace_back([&, i] {
        Client client(jobs, cluster.address(), i, spec);
        while (jobs.calls() < wanted && !::testing::Test::HasFailure()) client.CallOnce();
      });
    }
  }
  const int deaths = killer.Stop();
  Client last(jobs, cluster.address(), kClients, spec);
  last.ListAll();
  simulated.reset();
  for (const auto& [id, number] : jobs.numbers()) {
    EXPECT_TRUE(last.stored().contains(id) || jobs.deleted().contains(number))
        << "job " << id << " was answered and is gone";
  }
  EXPECT_LE(last.stored().size(), jobs.histories().size()) << "jobs that nobody submitted";
  for (const auto& [number, history] : jobs.histories()) {
    const Status status = CheckHistory(history, workers > 0 ? Movers::kService : Movers::kNobody);
    ASSERT_TRUE(status.ok()) << "request " << number << ": " << status.message();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%ld calls on %zu jobs, %d deaths of the coordinator, %.0f s\n",
              static_cast<long>(jobs.calls()), jobs.histories().size(), deaths, took.count());
  EXPECT_GT(deaths, 0);
}

TEST(History, OfJobsThatWaitIsLinearizable) {
  CallAndCheck(0);
}

TEST(History, OfJobsThatRunIsLinearizable) {
  CallAndCheck(3);
}

}  // namespace
}  // namespace weft::testing
