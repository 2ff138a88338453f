// weft-coordinator: the one process that knows all jobs and workers.
#include <fcntl.h>
#include <prometheus/exposer.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "common/env.h"
#include "common/json.h"
#include "common/log.h"
#include "common/version.h"
#include "coordinator/api/server.h"
#include "coordinator/planner/planner.h"
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

struct Options {
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  std::string data_dir;
  std::string run_root;
  std::vector<std::string> data_roots;
  double lease_seconds = 10;
  double heartbeat_seconds = 2;
  double grow_after_seconds = GrowthRules().after_seconds;
  double hang_seconds = HangRules().least_seconds;
  double stop_seconds = std::chrono::duration<double>(ServiceOptions().stop_limit).count();
  double plan_budget_seconds = std::chrono::duration<double>(PlanningRules().budget).count();
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

Result<std::unique_ptr<prometheus::Exposer>> ServeMetrics(const std::string& address,
                                                          const Metrics& metrics) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address, 2);
    exposer->RegisterCollectable(metrics.registry());
    return exposer;
  } catch (const std::exception& error) {
    return UnavailableError("cannot serve metrics on " + address + ": " + error.what() +
                            "; hint: --metrics-listen with a free port, or an empty one for none");
  }
}

/// Where the ports of this process can be found when they were chosen by the system.
Status WritePorts(const Options& options, int port, const prometheus::Exposer* exposer) {
  std::string host = options.listen.substr(0, options.listen.rfind(':'));
  Json json = {{"pid", getpid()},
               {"version", kVersion},
               {"port", port},
               {"address", host + ":" + std::to_string(port)}};
  if (exposer != nullptr && !exposer->GetListeningPorts().empty()) {
    json["metrics_port"] = exposer->GetListeningPorts().front();
  }
  return WriteFileAtomic(Env::Posix(), JoinPath(options.data_dir, "coordinator.json"),
                         json.dump(2) + "\n");
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
  SqliteOptions sqlite;
  sqlite.path = JoinPath(options.data_dir, "weft.db");
  sqlite.on_commit = [&](double seconds, int64_t changes) {
    metrics.StoreCommitted(seconds, changes);
  };
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store, SqliteStore::Open(sqlite));
  ServiceOptions service_options;
  service_options.run_root = options.run_root;
  service_options.data_roots = options.data_roots;
  service_options.lease = std::chrono::nanoseconds(std::llround(options.lease_seconds * 1e9));
  service_options.heartbeat =
      std::chrono::nanoseconds(std::llround(options.heartbeat_seconds * 1e9));
  service_options.growth.after_seconds = options.grow_after_seconds;
  service_options.hang.least_seconds = options.hang_seconds;
  service_options.stop_limit = std::chrono::nanoseconds(std::llround(options.stop_seconds * 1e9));
  service_options.planning.budget =
      std::chrono::nanoseconds(std::llround(options.plan_budget_seconds * 1e9));
  Service service(*store, Clock::System(), planner::PlanJob, metrics, service_options);
  WEFT_RETURN_IF_ERROR(service.Start());
  std::unique_ptr<prometheus::Exposer> exposer;
  if (!options.metrics_listen.empty()) {
    WEFT_ASSIGN_OR_RETURN(exposer, ServeMetrics(options.metrics_listen, metrics));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                        Server::Listen(options.listen, service, metrics));
  WEFT_RETURN_IF_ERROR(WritePorts(options, server->port(), exposer.get()));
  std::printf("weft-coordinator %s ready on %s:%d\n", kVersion,
              options.listen.substr(0, options.listen.rfind(':')).c_str(), server->port());
  std::fflush(stdout);

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  WEFT_LOG_INFO << "signal " << signal_number << ": shutting down; ranks go on";
  service.CloseLinks();
  server.reset();
  service.Stop();
  // Stopping the metrics server takes two seconds and is of use to nobody.
  (void)exposer.release();
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
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  Options options;
  CLI::App app("Keeps jobs, plans them and gives them to workers.", "weft-coordinator");
  app.set_version_flag("--version", std::string("weft-coordinator ") + kVersion);
  app.add_option("--listen", options.listen,
                 "Address for the CLI and workers, HOST:PORT; port 0: any")
      ->envname("WEFT_COORDINATOR_LISTEN")
      ->capture_default_str();
  app.add_option("--metrics-listen", options.metrics_listen, "Address of /metrics; empty: none")
      ->envname("WEFT_COORDINATOR_METRICS_LISTEN")
      ->capture_default_str();
  app.add_option("--data-dir", options.data_dir, "Folder of the database")
      ->envname("WEFT_COORDINATOR_DATA_DIR")
      ->required();
  app.add_option("--run-root", options.run_root,
                 "Folder, shared with the workers, that holds a folder for each job")
      ->envname("WEFT_COORDINATOR_RUN_ROOT")
      ->required();
  app.add_option("--data-root", options.data_roots,
                 "Jobs may read files below these folders only; default: anywhere")
      ->envname("WEFT_COORDINATOR_DATA_ROOT");
  app.add_option("--lease-seconds", options.lease_seconds,
                 "A worker that is silent for so long is lost")
      ->envname("WEFT_COORDINATOR_LEASE_SECONDS")
      ->check(CLI::Range(0.2, 3600.0))
      ->capture_default_str();
  app.add_option("--heartbeat-seconds", options.heartbeat_seconds, "How often workers report")
      ->envname("WEFT_COORDINATOR_HEARTBEAT_SECONDS")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  app.add_option("--grow-after-seconds", options.grow_after_seconds,
                 "A job runs, and a new worker stays, so long before the job gets more ranks; 0: "
                 "no running job does")
      ->envname("WEFT_COORDINATOR_GROW_AFTER_SECONDS")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option(
         "--hang-seconds", options.hang_seconds,
         "Ranks that make no step for so long, and for ten of their longest steps, count as "
         "hung; 0: never")
      ->envname("WEFT_COORDINATOR_HANG_SECONDS")
      ->check(CLI::Range(0.0, 1e6))
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  Status status = Run(std::move(options), signals);
  if (!status.ok()) std::fprintf(stderr, "weft-coordinator: %s\n", status.message().c_str());
  return ExitCodeOf(status);
}

}  // namespace weft::coordinator

int main(int argc, char** argv) {
  return weft::coordinator::Main(argc, argv);
}
