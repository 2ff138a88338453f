// Load on a coordinator, for tests/bench/service, which starts it and judges what is printed here:
//   service_bench fill     puts jobs into a database, as if submitted
//   service_bench submit   submissions at an even rate
//   service_bench calls    get, list, cancel and retry
//   service_bench find     which of those jobs are gone
//   service_bench workers  heartbeats; then some workers die
// Each prints one line of JSON; --help has its options.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/http/server.h"
#include "common/json.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/convert.h"
#include "tests/framework/simulated_workers.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;
using Stubs = std::vector<std::unique_ptr<v1::Coordinator::Stub>>;

constexpr size_t kConnections = 8;
constexpr std::chrono::seconds kCallLimit(60);
constexpr int64_t kShapes = 100;
constexpr int64_t kMostUncommitted = 4096;
constexpr int32_t kPage = 5000;

/// The value that a share `q` of them does not exceed; 0 of none.
double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto place = std::llround(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<size_t>(place)];
}

Json Latencies(std::vector<double> seconds) {
  return {{"count", seconds.size()},
          {"p50_seconds", Quantile(seconds, 0.5)},
          {"p99_seconds", Quantile(seconds, 0.99)},
          {"max_seconds", Quantile(seconds, 1)}};
}

/// Jobs of many kinds, which no worker has the file for: they differ in what plans depend on.
JobSpec SpecOf(int64_t number) {
  JobSpec spec;
  const int64_t shape = number % kShapes;
  spec.name = "load-" + std::to_string(shape);
  spec.data.train = {"/data/part-" + std::to_string(shape) + ".txt"};
  spec.model.layers = 2 + shape % 10;
  spec.train.steps = 1000 + shape;
  spec.resources.ranks = 1 + shape % 2;
  return spec;
}

Stubs Connect(const std::string& address) {
  Stubs stubs;
  for (size_t i = 0; i < kConnections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

// ---------------------------------------------------------------------------------------- fill

coordinator::Transaction QueuedJob(int64_t number, double now, const std::string& run_root) {
  coordinator::Transaction change;
  coordinator::JobRecord job;
  job.spec = SpecOf(number);
  job.id = job.spec.name + "-" + std::to_string(number);
  job.submitted_at = job.queued_at = now;
  job.run_dir = run_root + "/" + job.id;
  job.progress.steps_total = job.spec.train.steps;
  change.client_request_id = "fill-" + std::to_string(number);
  change.events.push_back({job.id, 0, now, "submitted", change.client_request_id});
  change.job = std::move(job);
  return change;
}

coordinator::Transaction FinishedJob(int64_t number, double now, const std::string& run_root) {
  coordinator::Transaction change = QueuedJob(number, now, run_root);
  coordinator::JobRecord& job = *change.job;
  job.state = coordinator::JobState::kSucceeded;
  job.reason = coordinator::Reason::kCompleted;
  job.started_at = job.ended_at = now;
  job.last_epoch = 1;
  job.progress.step = job.spec.train.steps;
  coordinator::AttemptRecord attempt;
  attempt.job_id = job.id;
  attempt.epoch = 1;
  attempt.started_at = now;
  attempt.ended_at = now;
  attempt.reason = coordinator::Reason::kCompleted;
  attempt.plan.rank_workers = {"worker-0"};
  attempt.placements = {{"worker-0", {0}, coordinator::PlacementState::kFinished}};
  change.attempt = std::move(attempt);
  for (const char* text : {"QUEUED -> STARTING", "STARTING -> RUNNING", "RUNNING -> SUCCEEDED"}) {
    change.events.push_back({job.id, 1, now, "transition", text});
  }
  return change;
}

Result<Json> Fill(const std::string& database, int64_t queued, int64_t finished,
                  const std::string& run_root) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<coordinator::SqliteStore> store,
                        coordinator::SqliteStore::Open({.path = database, .max_batch = 1024}));
  const double now = Clock::System().UnixSeconds();
  std::mutex mutex;
  std::condition_variable changed;
  int64_t uncommitted = 0;
  Status failed;
  for (int64_t i = 0; i < queued + finished; ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return uncommitted < kMostUncommitted; });
      if (!failed.ok()) break;
      ++uncommitted;
    }
    store->Commit(i < finished ? FinishedJob(i, now, run_root) : QueuedJob(i, now, run_root),
                  [&](const Result<coordinator::CommitResult>& result) {
                    const std::lock_guard lock(mutex);
                    --uncommitted;
                    if (!result.ok()) failed = result.status();
                    changed.notify_one();
                  });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return uncommitted == 0; });
  WEFT_RETURN_IF_ERROR(failed);
  return Json{{"queued", queued}, {"finished", finished}};
}

// -------------------------------------------------------------------------------------- submit

/// Calls that are under way, and what came of them.
struct Answers {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t in_flight = 0;
  std::vector<double> seconds;  ///< From when the call was due to its answer.
  std::vector<std::string> ids;
  std::string first_error;
  int64_t errors = 0;
};

struct Submission {
  grpc::ClientContext context;
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
};

/// Open loop: a call is made when it is due, however many are unanswered, and its time counts from
/// then.
Result<Json> Submit(const std::string& address, double rate, double seconds,
                    const std::string& prefix, const std::string& ids_file) {
  const Stubs stubs = Connect(address);
  std::vector<v1::JobSpec> specs;
  for (int64_t i = 0; i < kShapes; ++i) specs.push_back(ToProto<v1::JobSpec>(SpecOf(i)));
  Answers answers;
  const auto count = static_cast<int64_t>(rate * seconds);
  const Steady::time_point begin = Steady::now() + milliseconds(100);
  for (int64_t i = 0; i < count; ++i) {
    const Steady::time_point due = begin + std::chrono::duration_cast<Steady::duration>(
                                               duration<double>(static_cast<double>(i) / rate));
    auto call = std::make_shared<Submission>();
    *call->request.mutable_spec() = specs[static_cast<size_t>(i % kShapes)];
    call->request.set_client_request_id(prefix + std::to_string(i));
    std::this_thread::sleep_until(due);
    call->context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    {
      const std::lock_guard lock(answers.mutex);
      ++answers.in_flight;
    }
    stubs[static_cast<size_t>(i) % kConnections]->async()->SubmitJob(
        &call->context, &call->request, &call->response,
        [call, due, &answers](const grpc::Status& status) {
          const double took = SecondsSince(due);
          const std::lock_guard lock(answers.mutex);
          if (status.ok()) {
            answers.seconds.push_back(took);
            answers.ids.push_back(call->response.job().id());
          } else {
            if (answers.errors++ == 0) answers.first_error = status.error_message();
          }
          --answers.in_flight;
          answers.changed.notify_one();
        });
  }
  const double sent_after = SecondsSince(begin);
  std::unique_lock lock(answers.mutex);
  answers.changed.wait(lock, [&] { return answers.in_flight == 0; });
  const double answered_after = SecondsSince(begin);
  if (!ids_file.empty()) {
    std::ofstream file(ids_file, std::ios::app);
    for (const std::string& id : answers.ids) file << id << "\n";
  }
  Json result = Latencies(answers.seconds);
  result["errors"] = answers.errors;
  result["first_error"] = answers.first_error;
  result["sent_per_second"] = static_cast<double>(count) / sent_after;
  result["answered_per_second"] = static_cast<double>(count) / answered_after;
  return result;
}

// --------------------------------------------------------------------------------- calls, find

/// Pages of all jobs; `see` gets each.
grpc::Status EachJob(v1::Coordinator::Stub& stub, const std::function<void(const v1::Job&)>& see) {
  v1::ListJobsRequest request;
  request.set_page_size(kPage);
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    v1::ListJobsResponse response;
    const grpc::Status status = stub.ListJobs(&context, request, &response);
    if (!status.ok()) return status;
    for (const v1::Job& job : response.jobs()) see(job);
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return grpc::Status::OK;
}

Result<Json> Find(const std::string& address, const std::string& ids_file) {
  const Stubs stubs = Connect(address);
  std::set<std::string> stored;
  int64_t listed = 0;
  const grpc::Status status = EachJob(*stubs.front(), [&](const v1::Job& job) {
    ++listed;
    stored.insert(job.id());
  });
  if (!status.ok()) return UnavailableError(status.error_message());
  int64_t wanted = 0, missing = 0;
  std::ifstream file(ids_file);
  for (std::string id; std::getline(file, id); ++wanted) missing += stored.contains(id) ? 0 : 1;
  return Json{{"wanted", wanted},
              {"missing", missing},
              {"stored", stored.size()},
              {"twice", listed - static_cast<int64_t>(stored.size())}};
}

/// One call after the other, as a person makes them, to the newest jobs.
Result<Json> Calls(const std::string& address, double seconds) {
  const Stubs stubs = Connect(address);
  v1::Coordinator::Stub& stub = *stubs.front();
  std::vector<std::string> ids;
  const grpc::Status listed = EachJob(stub, [&](const v1::Job& job) {
    if (job.state() == v1::QUEUED && ids.size() < 1000) ids.push_back(job.id());
  });
  if (!listed.ok()) return UnavailableError(listed.error_message());
  if (ids.empty()) return NotFoundError("no job is queued");
  std::map<std::string, std::vector<double>> times;
  std::string error;
  const auto time = [&](const char* name,
                        const std::function<grpc::Status(grpc::ClientContext*)>& call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    const Steady::time_point begin = Steady::now();
    const grpc::Status status = call(&context);
    times[name].push_back(SecondsSince(begin));
    // A job may have been started meanwhile.
    if (!status.ok() && status.error_code() != grpc::StatusCode::FAILED_PRECONDITION) {
      error = std::string(name) + ": " + status.error_message();
    }
  };
  const Steady::time_point begin = Steady::now();
  for (size_t i = 0; SecondsSince(begin) < seconds && error.empty(); ++i) {
    const std::string& id = ids[i % ids.size()];
    v1::Job job;
    time("get", [&](grpc::ClientContext* context) {
      v1::GetJobRequest request;
      request.set_id(id);
      return stub.GetJob(context, request, &job);
    });
    time("list", [&](grpc::ClientContext* context) {
      v1::ListJobsResponse response;
      return stub.ListJobs(context, v1::ListJobsRequest(), &response);
    });
    // The largest page, which is rarely asked for.
    if (i % 10 == 0) {
      time("page", [&](grpc::ClientContext* context) {
        v1::ListJobsRequest request;
        request.set_page_size(kPage);
        v1::ListJobsResponse response;
        return stub.ListJobs(context, request, &response);
      });
    }
    time("cancel", [&](grpc::ClientContext* context) {
      v1::CancelJobRequest request;
      request.set_id(id);
      return stub.CancelJob(context, request, &job);
    });
    time("retry", [&](grpc::ClientContext* context) {
      v1::RetryJobRequest request;
      request.set_id(id);
      return stub.RetryJob(context, request, &job);
    });
  }
  if (!error.empty()) return InternalError(error);
  Json result;
  for (auto& [name, values] : times) result[name] = Latencies(std::move(values));
  return result;
}

// ------------------------------------------------------------------------------------- workers

/// Workers that the coordinator calls lost, as its /metrics say; -1 when it does not answer.
int64_t CountLost(const std::string& metrics_address) {
  const Result<http::Reply> reply = http::Get(metrics_address, "/metrics", std::chrono::seconds(5));
  if (!reply.ok()) return -1;
  constexpr std::string_view kSeries = "weft_coord_workers{state=\"lost\"} ";
  const size_t at = reply->body.find(kSeries);
  return at == std::string::npos ? 0 : std::atoll(reply->body.c_str() + at + kSeries.size());
}

struct WorkersOptions {
  std::string address;
  std::string metrics_address;
  int64_t count = 1000;
  double attach_seconds = 10;
  double seconds = 30;
  double kill_share = 0;
  double detect_seconds = 60;  ///< At most, until all that died must be lost.
  int64_t train_milliseconds = 500;
};

/// Time that is not measured: after the last worker has attached, and for what follows from deaths.
constexpr double kMostSettling = 30;

/// Workers attach and are left alone; after a while that is measured for options.seconds. Then some
/// die at once.
Result<Json> Workers(const WorkersOptions& options, const std::function<void(const char*)>& say) {
  testing::SimulatedWorkers workers(
      {.address = options.address,
       .count = options.count,
       .attach_over = milliseconds(static_cast<int64_t>(options.attach_seconds * 1000)),
       .train_for = milliseconds(options.train_milliseconds)});
  const Steady::time_point begin = Steady::now();
  while (workers.attached() < options.count) {
    if (SecondsSince(begin) > 10 * options.attach_seconds + 60) {
      return UnavailableError("only " + std::to_string(workers.attached()) + " of " +
                              std::to_string(options.count) + " workers are attached");
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  Json result{{"attached_after_seconds", SecondsSince(begin)}};
  const duration<double> settling(std::min(options.seconds, kMostSettling));
  std::this_thread::sleep_for(settling);
  (void)workers.TakeRoundTrips();
  say("steady");
  const int64_t ended_before = workers.ended_attempts();
  std::this_thread::sleep_for(duration<double>(options.seconds));
  say("measured");
  result["heartbeats"] = Latencies(workers.TakeRoundTrips());
  result["attempts_per_second"] =
      static_cast<double>(workers.ended_attempts() - ended_before) / options.seconds;
  result["broken_streams"] = workers.broken_streams();
  result["lost"] = CountLost(options.metrics_address);
  const auto deaths = static_cast<int64_t>(options.kill_share * static_cast<double>(options.count));
  if (deaths == 0) return result;

  const Steady::time_point death = Steady::now();
  for (int64_t i = 0; i < deaths; ++i) workers.Kill(i * options.count / deaths);
  int64_t lost = 0;
  while (lost < deaths && SecondsSince(death) < options.detect_seconds) {
    std::this_thread::sleep_for(milliseconds(100));
    lost = CountLost(options.metrics_address);
  }
  result["killed"] = deaths;
  result["all_detected_after_seconds"] = SecondsSince(death);
  std::this_thread::sleep_for(settling);
  result["lost_in_the_end"] = CountLost(options.metrics_address);
  result["streams_broken_by_deaths"] =
      workers.broken_streams() - result["broken_streams"].get<int64_t>();
  result["heartbeats_after_deaths"] = Latencies(workers.TakeRoundTrips());
  return result;
}

int Main(int argc, char** argv) {
  std::string address, ids, database, prefix = "request-", run_root = "/runs";
  int64_t queued = 100000, finished = 10000;
  double rate = 200, seconds = 10;
  WorkersOptions workers;
  CLI::App app("Load on a coordinator.");
  app.require_subcommand(1);
  CLI::App& fill = *app.add_subcommand("fill", "Puts jobs into a database");
  fill.add_option("--database", database)->required();
  fill.add_option("--queued", queued)->capture_default_str();
  fill.add_option("--finished", finished)->capture_default_str();
  fill.add_option("--run-root", run_root)->capture_default_str();
  CLI::App& submit = *app.add_subcommand("submit", "Submits jobs at an even rate");
  submit.add_option("--rate", rate, "Calls per second")->capture_default_str();
  submit.add_option("--prefix", prefix, "Of request ids")->capture_default_str();
  submit.add_option("--ids", ids, "File that the ids of stored jobs are appended to");
  CLI::App& calls = *app.add_subcommand("calls", "Gets, lists, cancels and retries jobs");
  CLI::App& find = *app.add_subcommand("find", "Looks for jobs");
  find.add_option("--ids", ids, "File of ids")->required();
  CLI::App& attach = *app.add_subcommand("workers", "Simulates workers");
  attach.add_option("--count", workers.count)->capture_default_str();
  attach.add_option("--attach-seconds", workers.attach_seconds)->capture_default_str();
  attach.add_option("--metrics-address", workers.metrics_address)->required();
  attach.add_option("--kill-share", workers.kill_share)->check(CLI::Range(0.0, 1.0));
  attach.add_option("--detect-seconds", workers.detect_seconds)->capture_default_str();
  attach.add_option("--train-milliseconds", workers.train_milliseconds)->capture_default_str();
  for (CLI::App* command : {&submit, &calls, &find, &attach}) {
    command->add_option("--address", address, "HOST:PORT of the coordinator")->required();
  }
  for (CLI::App* command : {&submit, &calls, &attach}) {
    command->add_option("--seconds", seconds)->capture_default_str();
  }
  CLI11_PARSE(app, argc, argv);
  workers.address = address;
  workers.seconds = seconds;
  // For whoever reads counters of the coordinator at the same time.
  const auto say = [](const char* what) {
    std::printf("{\"now\": \"%s\"}\n", what);
    std::fflush(stdout);
  };
  const Result<Json> result = fill     ? Fill(database, queued, finished, run_root)
                              : submit ? Submit(address, rate, seconds, prefix, ids)
                              : calls  ? Calls(address, seconds)
                              : find   ? Find(address, ids)
                                       : Workers(workers, say);
  if (!result.ok()) {
    std::fprintf(stderr, "service_bench: %s\n", result.status().message().c_str());
    return 1;
  }
  std::printf("%s\n", result->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  return weft::Main(argc, argv);
}
