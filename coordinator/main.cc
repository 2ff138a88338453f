// weft-coordinator: the one process that knows all jobs and workers.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "common/clock.h"
#include "common/env.h"
#include "common/http/address.h"
#include "common/http/server.h"
#include "common/json.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "common/version.h"
#include "common/yaml.h"
#include "coordinator/api/server.h"
#include "coordinator/health.h"
#include "coordinator/planner/planner.h"
#include "coordinator/scheduler/decision_record.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {
namespace {

/// Exit codes; listed in docs/operations.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,
  kExitUsage = 2,
  kExitUnavailable = 6,  ///< Port or data folder taken by another process.
};

constexpr const char* kPortsFile = "coordinator.json";
constexpr uint64_t kMostQueueBytes = uint64_t{4} << 20;
constexpr std::chrono::milliseconds kProbePatience{3000};
/// Seconds of calls that a person may make in one go.
constexpr double kCallsAtOnce = 5;
/// Between looks for space on a full disk.
constexpr std::chrono::seconds kSpacePause{2};

struct Options {
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  bool metrics_insecure = false;
  std::string data_dir;
  std::string run_root;
  std::vector<std::string> data_roots;
  std::string queues;
  double lease_seconds = 10;
  double heartbeat_seconds = 2;
  double scale_up_after_seconds = ScaleUpRules().after_seconds;
  std::string hang_seconds = "auto";
  double straggler_ratio = StragglerRules().ratio;
  double straggler_seconds = StragglerRules().seconds;
  std::string straggler_action = "report";
  double check_seconds = ToSeconds(HealthRules().limit);
  double quarantine_at = SuspicionRules().quarantine_at;
  int64_t spare_workers = ServiceOptions().spare_workers;
  double stop_seconds = ToSeconds(ServiceOptions().stop_limit);
  double plan_budget_seconds = ToSeconds(PlanningRules().budget);
  int64_t keep_jobs_days = RetentionRules().jobs.count() / 24;
  bool delete_run_folders = RetentionRules().run_folders;
  int64_t keep_lost_workers_hours = RetentionRules().lost_workers.count();
  int64_t network_links = ServiceOptions().links_per_machine;
  int64_t network_link_hours =
      std::chrono::duration_cast<std::chrono::hours>(ServiceOptions().link_age).count();
  int64_t max_connections = static_cast<int64_t>(ServerLimits().connections);
  tls::Files tls;
  std::string revoked_file;
  bool insecure = false;
  std::string people_file;
  double calls_per_second = AccessRules().calls_per_second;
  int64_t jobs_per_person = AccessRules().jobs_per_person;
  int64_t decisions_mib = 64;
  std::string replay_decisions;
  bool healthcheck = false;
};

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kUnavailable:
    case StatusCode::kConflict:
      return kExitUnavailable;
    case StatusCode::kInvalid:
    case StatusCode::kNotFound:
      return kExitUsage;
    default:
      return kExitInternal;
  }
}

/// Holds the data folder for this process alone; the kernel lets go when the process dies.
class FolderLock {
 public:
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  Status Take(const std::string& folder) {
    std::string path = JoinPath(folder, "coordinator.lock");
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) {
      Status status = ErrnoError("open " + path, errno);
      return InvalidError(status.message() + "; hint: --data-dir must be writable");
    }
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      return UnavailableError("another weft-coordinator uses the data folder " + folder +
                              "; hint: stop it, or give another --data-dir");
    }
    return OkStatus();
  }

 private:
  int fd_ = -1;
};

/// Where the ports of this process can be found when they were chosen by the system.
Status WritePorts(const Options& options, int port, const http::Server* pages) {
  std::string host = options.listen.substr(0, options.listen.rfind(':'));
  Json json = {{"pid", getpid()},
               {"version", kVersion},
               {"port", port},
               {"address", host + ":" + std::to_string(port)}};
  if (pages != nullptr) {
    json["metrics_port"] = pages->port();
    json["metrics_address"] = pages->local_address();
  }
  return WriteFileAtomic(Env::Posix(), JoinPath(options.data_dir, kPortsFile), json.dump(2) + "\n");
}

/// Asks the coordinator of the data folder whether it serves; the exit code of a container's probe.
int CheckHealth(const std::string& data_dir) {
  const auto ask = [&]() -> Result<http::Reply> {
    const std::string path = JoinPath(data_dir, kPortsFile);
    WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, 1 << 16));
    WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
    if (!json.is_object() || !json.contains("metrics_address") ||
        !json["metrics_address"].is_string()) {
      return InvalidError("the coordinator serves no health; hint: give it --metrics-listen");
    }
    return http::Get(json["metrics_address"].get<std::string>(), "/readyz", kProbePatience);
  };
  const Result<http::Reply> reply = ask();
  const bool ready = reply.ok() && reply->status == 200;
  std::fprintf(ready ? stdout : stderr, "weft-coordinator: %s\n",
               (reply.ok() ? reply->body : reply.status().message()).c_str());
  return ready ? kExitOk : kExitInternal;
}

/// Has the scheduler decide once more what a file of decisions says.
int Replay(const std::string& path) {
  const auto replay = [&]() -> Status {
    WEFT_ASSIGN_OR_RETURN(const std::string lines, ReadFile(Env::Posix(), path));
    return ReplayDecisions(lines);
  };
  const Status status = replay();
  std::fprintf(status.ok() ? stdout : stderr, "weft-coordinator: %s\n",
               status.ok() ? (path + ": the same decisions").c_str() : status.message().c_str());
  return status.ok() ? kExitOk : kExitInternal;
}

/// One of the signals, or 0 after `time`.
int AwaitSignal(const sigset_t& signals, std::chrono::seconds time) {
  const timespec limit{time.count(), 0};
  const int number = sigtimedwait(&signals, nullptr, &limit);
  return number > 0 ? number : 0;
}

/// Opens the store; on a full disk that does not even let it be read, waits for space. Null when a
/// signal came first.
Result<std::unique_ptr<SqliteStore>> OpenStore(const SqliteOptions& options, Health& health,
                                               const sigset_t& signals) {
  std::string told;
  while (true) {
    Result<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options);
    if (store.ok() || store.status().code() != StatusCode::kExhausted) return store;
    const std::string& why = store.status().message();
    if (told != why) {
      WEFT_LOG_ERROR << why << "; waiting for space";
    }
    told = why;
    health.Wait("waiting for space: " + why);
    const int signal_number = AwaitSignal(signals, kSpacePause);
    if (signal_number != 0 && signal_number != SIGHUP) return std::unique_ptr<SqliteStore>();
  }
}

/// The queues of a file; none without one. kInvalid names file, line and field.
Result<QueuesSpec> ReadQueues(const std::string& path) {
  if (path.empty()) return QueuesSpec();
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(Env::Posix(), path, kMostQueueBytes));
  WEFT_ASSIGN_OR_RETURN(const Document document, ParseYaml(text, path));
  WEFT_ASSIGN_OR_RETURN(QueuesSpec queues, FromJson<QueuesSpec>(document));
  WEFT_RETURN_IF_ERROR(ValidateQueues(queues).WithContext(path));
  return queues;
}

/// Reads the file again; what is wrong with it changes nothing.
void ReloadQueues(const std::string& path, Service& service) {
  if (path.empty()) {
    WEFT_LOG_WARNING << "SIGHUP: there is no --queues to read again";
    return;
  }
  const Result<QueuesSpec> queues = ReadQueues(path);
  const Status status = queues.ok() ? service.SetQueues(*queues) : queues.status();
  if (!status.ok()) {
    WEFT_LOG_ERROR << "SIGHUP: the queues stay as they were: " << status.message();
  }
}

/// Until a signal to end. A file of ports that could not be written for lack of space is tried
/// again.
int AwaitEnd(const Options& options, int port, const http::Server* pages, Status written,
             const sigset_t& signals, Service& service) {
  while (true) {
    int signal_number = 0;
    if (written.ok()) {
      sigwait(&signals, &signal_number);
    } else {
      signal_number = AwaitSignal(signals, kSpacePause);
      written = WritePorts(options, port, pages);
    }
    if (signal_number == SIGHUP) {
      ReloadQueues(options.queues, service);
    } else if (signal_number != 0) {
      return signal_number;
    }
  }
}

Result<ServerSecurity> SecurityOf(const Options& options) {
  ServerSecurity security;
  security.tls = options.tls;
  security.plain_allowed = options.insecure;
  if (options.insecure && options.tls.empty()) {
    WEFT_LOG_WARNING << "--insecure: whoever reaches " << options.listen
                     << " can read and change everything, and listen in";
  }
  if (!options.people_file.empty()) {
    Result<std::unique_ptr<People>> people = People::Open(options.people_file, Clock::System());
    if (!people.ok()) return people.status().WithContext("--auth");
    security.access.people = *std::move(people);
  }
  if (!options.revoked_file.empty()) {
    Result<std::unique_ptr<tls::RevocationList>> revoked =
        tls::RevocationList::Open(options.revoked_file, options.tls.authorities, Clock::System());
    if (!revoked.ok()) return revoked.status().WithContext("--tls-crl");
    security.access.revoked = *std::move(revoked);
  }
  security.access.calls_per_second = options.calls_per_second;
  security.access.calls_at_once = kCallsAtOnce * options.calls_per_second;
  security.access.jobs_per_person = options.jobs_per_person;
  return security;
}

Status Prepare(Options& options) {
  if (options.lease_seconds < 2 * options.heartbeat_seconds) {
    return InvalidError("--lease-seconds must be at least twice --heartbeat-seconds");
  }
  for (std::string* folder : {&options.data_dir, &options.run_root}) {
    *folder = std::filesystem::absolute(*folder).lexically_normal();
    Status status = Env::Posix().CreateDirs(*folder);
    if (!status.ok()) {
      return InvalidError("create the folder " + *folder + ": " + status.message() +
                          "; hint: --data-dir and --run-root must be writable");
    }
  }
  WEFT_ASSIGN_OR_RETURN(const http::HostPort listen, http::ParseAddress(options.listen));
  if (!options.metrics_listen.empty()) {
    WEFT_RETURN_IF_ERROR(http::CheckPlainPages(options.metrics_listen, options.metrics_insecure)
                             .WithContext("--metrics-listen"));
  }
  if (options.data_roots.empty() && !http::IsLoopback(listen.host)) {
    return InvalidError(
        "jobs from other machines could read every file that this user can; hint: "
        "--data-root DIR says which folders jobs may name, and / allows all");
  }
  for (const std::string& root : options.data_roots) {
    if (!std::filesystem::path(root).is_absolute()) {
      return InvalidError("--data-root '" + root + "' must be an absolute path");
    }
  }
  return OkStatus();
}

Status Run(Options options, const sigset_t& signals) {
  WEFT_RETURN_IF_ERROR(Prepare(options));
  FolderLock lock;
  WEFT_RETURN_IF_ERROR(lock.Take(options.data_dir));
  Metrics metrics;
  Health health;
  std::unique_ptr<http::Server> pages;
  if (!options.metrics_listen.empty()) {
    Result<std::unique_ptr<http::Server>> listening =
        http::Server::Listen(options.metrics_listen, health.Pages(metrics));
    if (!listening.ok()) {
      return Status(listening.status().code(),
                    "--metrics-listen: " + listening.status().message() + ", or '' for none");
    }
    pages = std::move(*listening);
  }
  SqliteOptions sqlite;
  sqlite.path = JoinPath(options.data_dir, "weft.db");
  sqlite.on_commit = [&](double seconds, int64_t changes) {
    metrics.StoreCommitted(seconds, changes);
  };
  sqlite.on_writable = [&](const Status& status) {
    metrics.SetStoreWritable(status.ok());
    if (status.ok()) {
      WEFT_LOG_INFO << "the database takes changes again";
    } else {
      WEFT_LOG_ERROR << "the database can only be read: " << status.message();
    }
  };
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store, OpenStore(sqlite, health, signals));
  if (store == nullptr) return OkStatus();
  ServiceOptions service_options;
  service_options.run_root = options.run_root;
  service_options.data_roots = options.data_roots;
  WEFT_ASSIGN_OR_RETURN(service_options.queues, ReadQueues(options.queues));
  service_options.lease = std::chrono::nanoseconds(std::llround(options.lease_seconds * 1e9));
  service_options.heartbeat =
      std::chrono::nanoseconds(std::llround(options.heartbeat_seconds * 1e9));
  service_options.scale_up.after_seconds = options.scale_up_after_seconds;
  WEFT_ASSIGN_OR_RETURN(service_options.hang, HangRulesOf(options.hang_seconds));
  service_options.straggler = {options.straggler_ratio, options.straggler_seconds};
  service_options.straggler_action =
      options.straggler_action == "move" ? StragglerAction::kMove : StragglerAction::kReport;
  service_options.health.limit =
      std::chrono::nanoseconds(std::llround(options.check_seconds * 1e9));
  service_options.suspicion.quarantine_at = options.quarantine_at;
  service_options.spare_workers = options.spare_workers;
  service_options.decisions_folder = JoinPath(options.data_dir, "decisions");
  service_options.decisions_bytes = options.decisions_mib << 20;
  service_options.stop_limit = std::chrono::nanoseconds(std::llround(options.stop_seconds * 1e9));
  service_options.planning.budget =
      std::chrono::nanoseconds(std::llround(options.plan_budget_seconds * 1e9));
  service_options.retention.jobs = std::chrono::hours(24) * options.keep_jobs_days;
  service_options.retention.run_folders = options.delete_run_folders;
  service_options.retention.lost_workers = std::chrono::hours(options.keep_lost_workers_hours);
  service_options.links_per_machine = options.network_links;
  service_options.link_age = std::chrono::hours(options.network_link_hours);
  Service service(*store, Clock::System(), planner::PlanJob, metrics, service_options);
  WEFT_RETURN_IF_ERROR(service.Start());
  ServerLimits limits;
  limits.connections = static_cast<size_t>(options.max_connections);
  WEFT_ASSIGN_OR_RETURN(ServerSecurity security, SecurityOf(options));
  if (!options.tls.empty()) metrics.WatchCertificate(options.tls.certificate);
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<Server> server,
      Server::Listen(options.listen, service, metrics, limits, std::move(security)));
  Status written = WritePorts(options, server->port(), pages.get());
  if (!written.ok() && written.code() != StatusCode::kExhausted) return written;
  if (!written.ok()) {
    WEFT_LOG_ERROR << written.message() << "; trying again";
  }
  health.Serve(service, [&store] { return store->Writable(); });
  std::printf("weft-coordinator %s ready on %s:%d\n", kVersion,
              options.listen.substr(0, options.listen.rfind(':')).c_str(), server->port());
  std::fflush(stdout);

  const int signal_number =
      AwaitEnd(options, server->port(), pages.get(), written, signals, service);
  WEFT_LOG_INFO << "signal " << signal_number << ": shutting down; ranks go on";
  health.Stop();
  pages.reset();
  service.CloseLinks();
  server.reset();
  service.Stop();
  return OkStatus();
}

}  // namespace

int Main(int argc, char** argv) {
  InitLog("coordinator");
  // Before any thread exists, so that all inherit it and only sigwait sees these.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error to handle

  Options options;
  CLI::App app("Keeps jobs, plans them and gives them to workers.", "weft-coordinator");
  app.set_version_flag("--version", std::string("weft-coordinator ") + kVersion);
  app.add_option("--listen", options.listen,
                 "Address for the CLI and workers, HOST:PORT; port 0: any")
      ->envname("WEFT_COORDINATOR_LISTEN")
      ->capture_default_str();
  app.add_option("--metrics-listen", options.metrics_listen,
                 "Address of /metrics, /healthz and /readyz; empty: none")
      ->envname("WEFT_COORDINATOR_METRICS_LISTEN")
      ->capture_default_str();
  app.add_flag("--metrics-insecure", options.metrics_insecure,
               "Serve them on other addresses than loopback, too, without TLS")
      ->envname("WEFT_COORDINATOR_METRICS_INSECURE");
  app.add_option("--data-dir", options.data_dir, "Folder of the database")
      ->envname("WEFT_COORDINATOR_DATA_DIR");
  app.add_option("--run-root", options.run_root,
                 "Folder, shared with the workers, that holds a folder for each job")
      ->envname("WEFT_COORDINATOR_RUN_ROOT");
  app.add_option("--data-root", options.data_roots,
                 "Jobs may name files below these folders only; default on loopback: anywhere")
      ->envname("WEFT_COORDINATOR_DATA_ROOT");
  app.add_option("--queues", options.queues,
                 "File of queues, YAML or JSON, read again on SIGHUP; default: one queue for all")
      ->envname("WEFT_COORDINATOR_QUEUES");
  app.add_option("--lease-seconds", options.lease_seconds,
                 "A worker that is silent for so long is lost")
      ->envname("WEFT_COORDINATOR_LEASE_SECONDS")
      ->check(CLI::Range(0.2, 3600.0))
      ->capture_default_str();
  app.add_option("--heartbeat-seconds", options.heartbeat_seconds, "How often workers report")
      ->envname("WEFT_COORDINATOR_HEARTBEAT_SECONDS")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  app.add_option("--scale-up-after-seconds", options.scale_up_after_seconds,
                 "A job runs, and a new worker stays, so long before the job gets more ranks; 0: "
                 "no running job does")
      ->envname("WEFT_COORDINATOR_SCALE_UP_AFTER_SECONDS")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option(
         "--hang-seconds", options.hang_seconds,
         "Ranks that make no step for so long, and for five of their longest steps, count as "
         "hung; auto: 20, and 300 for what is no step; 0: never")
      ->envname("WEFT_COORDINATOR_HANG_SECONDS")
      ->check([](const std::string& text) { return HangRulesOf(text).status().message(); },
              "auto or seconds")
      ->capture_default_str();
  app.add_option(
         "--straggler-ratio", options.straggler_ratio,
         "A rank that takes this many times as long for its part of a step as its like is a "
         "straggler; 0: none is")
      ->envname("WEFT_COORDINATOR_STRAGGLER_RATIO")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app.add_option("--straggler-seconds", options.straggler_seconds,
                 "And does so for this long without a break")
      ->envname("WEFT_COORDINATOR_STRAGGLER_SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--straggler-action", options.straggler_action,
                 "report: tell people; move: also go on on other machines, where there are some")
      ->envname("WEFT_COORDINATOR_STRAGGLER_ACTION")
      ->check(CLI::IsMember({"report", "move"}))
      ->capture_default_str();
  app.add_option("--check-seconds", options.check_seconds,
                 "Longest time of the check of a machine before it gets ranks; 0: no checks")
      ->envname("WEFT_COORDINATOR_CHECK_SECONDS")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--quarantine-at", options.quarantine_at,
                 "A worker is left out after this many failures of its machine in a short time; 0: "
                 "never")
      ->envname("WEFT_COORDINATOR_QUARANTINE_AT")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app.add_option("--spare-workers", options.spare_workers,
                 "Workers that are kept free for jobs that recover from a failure")
      ->envname("WEFT_COORDINATOR_SPARE_WORKERS")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  app.add_option(
         "--stop-seconds", options.stop_seconds,
         "Ranks that are asked to stop are killed after so long, or after ten times as long "
         "while they show life")
      ->envname("WEFT_COORDINATOR_STOP_SECONDS")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  app.add_option("--plan-budget-seconds", options.plan_budget_seconds,
                 "A plan of a queued job that takes longer is given up, and tried again later")
      ->envname("WEFT_COORDINATOR_PLAN_BUDGET_SECONDS")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  app.add_option("--keep-jobs-days", options.keep_jobs_days,
                 "Jobs that ended so long ago are forgotten, with their logs; 0: never")
      ->envname("WEFT_COORDINATOR_KEEP_JOBS_DAYS")
      ->check(CLI::Range(0, 36500))
      ->capture_default_str();
  app.add_flag("--delete-run-folders", options.delete_run_folders,
               "Their run folders go with them, except those that hold an export")
      ->envname("WEFT_COORDINATOR_DELETE_RUN_FOLDERS");
  app.add_option("--keep-lost-workers-hours", options.keep_lost_workers_hours,
                 "Workers that were last heard of so long ago are forgotten; 0: never")
      ->envname("WEFT_COORDINATOR_KEEP_LOST_WORKERS_HOURS")
      ->check(CLI::Range(0, 876000))
      ->capture_default_str();
  app.add_option("--network-links", options.network_links,
                 "To how many other machines the network from each machine is measured; 0: never")
      ->envname("WEFT_COORDINATOR_NETWORK_LINKS")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  app.add_option(
         "--network-link-hours", options.network_link_hours,
         "A link that was measured so long ago is measured again once its two machines have "
         "nothing to do; 0: never")
      ->envname("WEFT_COORDINATOR_NETWORK_LINK_HOURS")
      ->check(CLI::Range(0, 876000))
      ->capture_default_str();
  app.add_option("--max-connections", options.max_connections,
                 "Connections of the CLI and workers at a time; one more is closed at once")
      ->envname("WEFT_COORDINATOR_MAX_CONNECTIONS")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--tls-cert", options.tls.certificate,
                 "TLS: file with the certificate of this server, PEM; read again when it changes")
      ->envname("WEFT_COORDINATOR_TLS_CERT");
  app.add_option("--tls-key", options.tls.key, "File with its private key; default: --tls-cert")
      ->envname("WEFT_COORDINATOR_TLS_KEY");
  app.add_option("--tls-ca", options.tls.authorities,
                 "File with the CA that workers and people have their certificates from")
      ->envname("WEFT_COORDINATOR_TLS_CA");
  app.add_option("--tls-crl", options.revoked_file,
                 "File with the certificates that are revoked (`weft certs revoke`); read again "
                 "when it changes")
      ->envname("WEFT_COORDINATOR_TLS_CRL");
  app.add_flag("--insecure", options.insecure,
               "Listen without TLS on other addresses than loopback, too")
      ->envname("WEFT_COORDINATOR_INSECURE");
  app.add_option(
         "--auth", options.people_file,
         "File of the people that may call, with their roles and tokens; read again when it "
         "changes; default: whoever reaches the server may do everything")
      ->envname("WEFT_COORDINATOR_AUTH");
  app.add_option("--calls-per-second", options.calls_per_second, "Calls that each person may make")
      ->envname("WEFT_COORDINATOR_CALLS_PER_SECOND")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app.add_option("--jobs-per-person", options.jobs_per_person,
                 "Jobs that each person may have that have not ended")
      ->envname("WEFT_COORDINATOR_JOBS_PER_PERSON")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--decisions-mib", options.decisions_mib,
                 "Size of the record of the scheduler's newest decisions, in DATA_DIR/decisions; "
                 "0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str()
      ->envname("WEFT_COORDINATOR_DECISIONS_MIB");
  app.add_option("--replay-decisions", options.replay_decisions,
                 "Decide again what a file of that record says, report the first difference, and "
                 "end");
  app.add_flag("--healthcheck", options.healthcheck,
               "Ask the coordinator that runs on --data-dir whether it serves; exit 0 if so");
  try {
    app.parse(argc, argv);
    const bool serves = !options.healthcheck && options.replay_decisions.empty();
    if (options.data_dir.empty() && options.replay_decisions.empty()) {
      throw CLI::RequiredError("--data-dir");
    }
    if (options.run_root.empty() && serves) throw CLI::RequiredError("--run-root");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (!options.replay_decisions.empty()) return Replay(options.replay_decisions);
  if (options.healthcheck) return CheckHealth(options.data_dir);
  Status status = Run(std::move(options), signals);
  if (!status.ok()) std::fprintf(stderr, "weft-coordinator: %s\n", status.message().c_str());
  return ExitCodeOf(status);
}

}  // namespace weft::coordinator

int main(int argc, char** argv) {
  return weft::coordinator::Main(argc, argv);
}
