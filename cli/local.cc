#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "cli/command.h"
#include "cli/local.h"
#include "cli/local_tls.h"
#include "common/env.h"
#include "common/http/address.h"
#include "common/json.h"

extern char** environ;

namespace weft::cli {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr double kStartSeconds = 30;

/// Daemons that drain nothing end within this time; workers that do tell the coordinator
/// afterwards.
constexpr double kStopSeconds = 30;

struct UpOptions {
  int workers = 2;
  int cores = 0;
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  bool metrics_insecure = false;
  std::vector<std::string> data_roots;
  double drain_seconds = 60;
  bool tls = false;
};

std::string StatePath() {
  return JoinPath(HomeDir(), "local.json");
}

LocalTls Certificates() {
  return LocalTls(JoinPath(HomeDir(), "certs"));
}

/// Kernel's start time of a process (clock ticks since boot), or 0 when there is none: with the pid
/// it names a process for good, even after pids are reused.
int64_t StartTicks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> field;
  if (field == "Z") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::atoll(field.c_str());
}

struct Daemon {
  std::string name;
  pid_t pid = 0;
  int64_t start_ticks = 0;

  bool Alive() const { return pid > 0 && StartTicks(pid) == start_ticks && start_ticks != 0; }
};

/// What `weft up` started.
struct LocalState {
  std::vector<Daemon> daemons;                       ///< The coordinator first.
  double drain_seconds = UpOptions().drain_seconds;  ///< Of each worker.
};

Result<LocalState> LoadState() {
  LocalState state;
  if (!Env::Posix().FileExists(StatePath())) return state;
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), StatePath(), 1 << 20));
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  for (const Json& entry : json.value("daemons", Json::array())) {
    state.daemons.push_back(
        {entry.value("name", ""), entry.value("pid", 0), entry.value("start_ticks", int64_t{0})});
  }
  state.drain_seconds = json.value("drain_seconds", state.drain_seconds);
  return state;
}

Status SaveState(const std::string& server, const std::vector<Daemon>& daemons,
                 const UpOptions& options) {
  Json json = {{"server", server},
               {"tls", options.tls},
               {"drain_seconds", options.drain_seconds},
               {"daemons", Json::array()}};
  for (const Daemon& daemon : daemons) {
    json["daemons"].push_back(
        {{"name", daemon.name}, {"pid", daemon.pid}, {"start_ticks", daemon.start_ticks}});
  }
  return WriteFileAtomic(Env::Posix(), StatePath(), json.dump(2) + "\n");
}

/// The folder of this binary, where the daemons are, too.
std::string BinaryDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

/// Starts a daemon in a session of its own, its output appended to HOME/logs/<name>.log.
Result<Daemon> Start(const std::string& name, std::vector<std::string> command) {
  std::string log = JoinPath(HomeDir(), "logs/" + name + ".log");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Daemon daemon{name, 0, 0};
  int error = posix_spawn(&daemon.pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoError("starting " + command[0], error);
  daemon.start_ticks = StartTicks(daemon.pid);
  return daemon;
}

std::string LogTail(const std::string& name) {
  auto text = ReadFile(Env::Posix(), JoinPath(HomeDir(), "logs/" + name + ".log"));
  if (!text.ok()) return "";
  size_t begin = text->size();
  for (int lines = 0; begin > 0 && lines < 6; --begin) lines += (*text)[begin - 1] == '\n';
  return text->substr(begin == 0 ? 0 : begin + 1);
}

void Stop(const std::vector<Daemon>& daemons, double limit_seconds = kStopSeconds) {
  for (const Daemon& daemon : daemons) {
    if (daemon.Alive()) kill(daemon.pid, SIGTERM);
  }
  auto give_up = steady_clock::now() + duration<double>(limit_seconds);
  auto alive = [](const Daemon& daemon) {
    waitpid(daemon.pid, nullptr, WNOHANG);
    return daemon.Alive();
  };
  while (std::any_of(daemons.begin(), daemons.end(), alive) && steady_clock::now() < give_up) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  for (const Daemon& daemon : daemons) {
    if (daemon.Alive()) kill(daemon.pid, SIGKILL);
  }
}

/// Waits for the coordinator to listen; gives its address, whose port it may have chosen itself.
Result<std::string> AwaitAddress(const Daemon& coordinator) {
  std::string path = JoinPath(HomeDir(), "coordinator/coordinator.json");
  auto give_up = steady_clock::now() + duration<double>(kStartSeconds);
  while (steady_clock::now() < give_up) {
    waitpid(coordinator.pid, nullptr, WNOHANG);
    if (!coordinator.Alive()) {
      return UnavailableError("coordinator ended while starting:\n" + LogTail("coordinator"));
    }
    if (auto text = ReadFile(Env::Posix(), path, 1 << 20); text.ok()) {
      auto json = ParseJson(*text);
      if (json.ok() && json->value("pid", 0) == coordinator.pid) return json->value("address", "");
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return UnavailableError("the coordinator does not listen after " + HumanDuration(kStartSeconds) +
                          "; hint: see " + JoinPath(HomeDir(), "logs/coordinator.log"));
}

/// Waits until `workers` workers are READY, or says which daemon died and shows its log.
Status AwaitReady(const ServerAccess& access, const std::vector<Daemon>& daemons, int workers) {
  Client client(access, 1);
  auto give_up = steady_clock::now() + duration<double>(kStartSeconds);
  while (steady_clock::now() < give_up) {
    for (const Daemon& daemon : daemons) {
      waitpid(daemon.pid, nullptr, WNOHANG);
      if (!daemon.Alive()) {
        return UnavailableError(daemon.name + " ended while starting:\n" + LogTail(daemon.name));
      }
    }
    auto listed = client.ListWorkers();
    if (listed.ok()) {
      auto ready = std::count_if(listed->begin(), listed->end(), [](const v1::Worker& worker) {
        return worker.state() == v1::READY;
      });
      if (ready >= workers) return OkStatus();
    }
    std::this_thread::sleep_for(milliseconds(30));
  }
  return UnavailableError("not all daemons were ready within " + HumanDuration(kStartSeconds) +
                          "; hint: see the logs in " + JoinPath(HomeDir(), "logs"));
}

std::string WorkerName(int index) {
  return "worker-" + std::to_string(index);
}

void Append(const std::vector<std::string>& options, std::vector<std::string>& command) {
  command.insert(command.end(), options.begin(), options.end());
}

/// "--data-root DIR" for each folder whose files jobs may name. What is trained here is always in
/// one.
std::vector<std::string> DataRootOptions(const UpOptions& options) {
  std::vector<std::string> roots = options.data_roots;
  std::error_code error;
  if (roots.empty()) {
    roots.push_back(std::filesystem::current_path(error).string());
    const char* home = std::getenv("HOME");
    if (home != nullptr) roots.emplace_back(home);
  }
  roots.push_back(HomeDir());
  std::vector<std::string> command;
  for (const std::string& root : roots) {
    if (root.empty()) continue;
    command.emplace_back("--data-root");
    command.push_back(std::filesystem::absolute(root, error).lexically_normal().string());
  }
  return command;
}

/// Starts everything into `daemons`; returns the coordinator's address.
Result<std::string> StartAll(const UpOptions& options, std::vector<Daemon>& daemons) {
  Env& env = Env::Posix();
  std::string home = HomeDir();
  for (const char* folder : {"logs", "runs", "coordinator"}) {
    WEFT_RETURN_IF_ERROR(env.CreateDirs(JoinPath(home, folder)));
  }
  std::string runs = JoinPath(home, "runs");
  int cores = options.cores > 0
                  ? options.cores
                  : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const LocalTls certificates = Certificates();
  std::vector<std::string> command = {JoinPath(BinaryDir(), "weft-coordinator"),
                                      "--listen",
                                      options.listen,
                                      "--metrics-listen",
                                      options.metrics_listen,
                                      "--data-dir",
                                      JoinPath(home, "coordinator"),
                                      "--run-root",
                                      runs};
  Append(DataRootOptions(options), command);
  if (options.metrics_insecure) command.emplace_back("--metrics-insecure");
  if (options.tls) {
    WEFT_ASSIGN_OR_RETURN(const http::HostPort listen, http::ParseAddress(options.listen));
    std::vector<std::string> names;
    for (int i = 0; i < options.workers; ++i) names.push_back(WorkerName(i));
    WEFT_RETURN_IF_ERROR(certificates.Prepare(listen.host, names));
    Append(certificates.CoordinatorOptions(), command);
  }
  WEFT_ASSIGN_OR_RETURN(Daemon coordinator, Start("coordinator", std::move(command)));
  daemons.push_back(coordinator);
  WEFT_ASSIGN_OR_RETURN(std::string server, AwaitAddress(coordinator));
  // A tenth stays free for the daemons and the file cache.
  auto memory = static_cast<int64_t>(0.9 * static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                                     static_cast<double>(sysconf(_SC_PAGESIZE)) / options.workers);
  // Ports of the workers' metrics follow the coordinator's.
  size_t colon = options.metrics_listen.rfind(':');
  std::string host = options.metrics_listen.substr(0, colon);
  int port = std::atoi(options.metrics_listen.c_str() + colon + 1);
  for (int i = 0; i < options.workers; ++i) {
    std::string name = WorkerName(i);
    std::string folder = JoinPath(home, name);
    WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
    int share = std::max(1, cores / options.workers + (i < cores % options.workers ? 1 : 0));
    std::string metrics = host + ":" + std::to_string(port == 0 ? 0 : port + 1 + i);
    command = {JoinPath(BinaryDir(), "weft-worker"),
               "--coordinator",
               server,
               "--data-dir",
               folder,
               "--run-root",
               runs,
               "--worker-id",
               name,
               "--cores",
               std::to_string(share),
               "--memory-limit",
               std::to_string(memory),
               "--drain-seconds",
               std::to_string(options.drain_seconds),
               "--metrics-listen",
               metrics};
    Append(DataRootOptions(options), command);
    if (options.metrics_insecure) command.emplace_back("--metrics-insecure");
    if (options.tls) Append(certificates.WorkerOptions(name), command);
    WEFT_ASSIGN_OR_RETURN(Daemon worker, Start(name, std::move(command)));
    daemons.push_back(worker);
  }
  return server;
}

ExitCode Up(const Session& session, const UpOptions& options) {
  auto running = LoadState();
  if (!running.ok()) return Fail(session, running.status());
  auto alive = std::count_if(running->daemons.begin(), running->daemons.end(),
                             [](const Daemon& daemon) { return daemon.Alive(); });
  if (alive == options.workers + 1) {
    std::cout << "already up: coordinator at " << LocalAccess().address << ", " << options.workers
              << " workers\n";
    return ExitCode::kOk;
  }
  if (alive > 0) {
    return Fail(session, ConflictError(std::to_string(alive) + " of the daemons from " +
                                       StatePath() + " still run; hint: `weft down` first"));
  }
  std::vector<Daemon> daemons;
  auto server = StartAll(options, daemons);
  Status status = server.status();
  if (status.ok()) status = SaveState(*server, daemons, options);
  if (status.ok()) status = AwaitReady(LocalAccess(), daemons, options.workers);
  if (!status.ok()) {
    Stop(daemons);
    (void)Env::Posix().RemoveFile(StatePath());
    return Fail(session, status);
  }
  if (!session.quiet) {
    std::cout << "coordinator at " << *server << " and " << options.workers
              << " workers are up; data and logs in " << HomeDir() << '\n';
  }
  return ExitCode::kOk;
}

ExitCode Down(const Session& session) {
  auto state = LoadState();
  if (!state.ok()) return Fail(session, state.status());
  const std::vector<Daemon>& daemons = state->daemons;
  auto alive = std::count_if(daemons.begin(), daemons.end(),
                             [](const Daemon& daemon) { return daemon.Alive(); });
  // Workers first, so that their ranks' last checkpoints still reach the coordinator. They kill
  // ranks that do not stop in time themselves.
  Stop({daemons.begin() + std::min<std::ptrdiff_t>(1, std::ssize(daemons)), daemons.end()},
       state->drain_seconds + kStopSeconds);
  Stop(daemons);
  if (Env::Posix().FileExists(StatePath())) {
    if (Status status = Env::Posix().RemoveFile(StatePath()); !status.ok()) {
      return Fail(session, status);
    }
  }
  if (!session.quiet) {
    std::cout << (alive > 0 ? "stopped " + std::to_string(alive) + " daemons\n"
                            : std::string("nothing was up\n"));
  }
  return ExitCode::kOk;
}

ExitCode ShowStatus(const Session& session) {
  auto state = LoadState();
  if (!state.ok()) return Fail(session, state.status());
  const std::vector<Daemon>& daemons = state->daemons;
  Listing listing{
      "Daemon", {}, {}, Table({"NAME", "STATE", "PID"}), Table({"NAME", "STATE", "PID", "LOG"}),
      false};
  bool all = !daemons.empty();
  for (const Daemon& daemon : daemons) {
    std::string shown = daemon.Alive() ? "RUNNING" : "DEAD";
    all = all && daemon.Alive();
    std::string log = JoinPath(HomeDir(), "logs/" + daemon.name + ".log");
    listing.items.push_back(
        {{"name", daemon.name}, {"state", shown}, {"pid", daemon.pid}, {"log", log}});
    listing.names.push_back("daemon/" + daemon.name);
    listing.table.Add({daemon.name, shown, std::to_string(daemon.pid)});
    listing.wide.Add({daemon.name, shown, std::to_string(daemon.pid), log});
  }
  Print(listing, session.output, std::cout);
  if (daemons.empty()) {
    return Fail(session, UnavailableError("nothing is up here; hint: `weft up`"));
  }
  return all ? ExitCode::kOk : ExitCode::kUnavailable;
}

}  // namespace

std::string HomeDir() {
  if (const char* home = std::getenv("WEFT_HOME"); home != nullptr && *home != '\0') {
    std::error_code error;
    return std::filesystem::absolute(home, error).string();
  }
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0') {
    return JoinPath(data, "weft");
  }
  const char* home = std::getenv("HOME");
  return JoinPath(home != nullptr ? home : "/tmp", ".local/share/weft");
}

ServerAccess LocalAccess() {
  ServerAccess access;
  auto text = ReadFile(Env::Posix(), StatePath(), 1 << 20);
  if (!text.ok()) return access;
  auto json = ParseJson(*text);
  if (!json.ok()) return access;
  access.address = json->value("server", "");
  if (json->value("tls", false)) access.tls = Certificates().Files();
  return access;
}

void AddLocalCommands(CLI::App& app, Session& session) {
  auto options = std::make_shared<UpOptions>();
  CLI::App* up = AddCommand(app, session, "up", "Start a coordinator and workers on this machine",
                            [&session, options] { return Up(session, *options); });
  up->add_option("--workers", options->workers, "Worker daemons, sharing the cores and memory")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  up->add_option("--cores", options->cores, "Cores to share among them (default: all)");
  up->add_option("--listen", options->listen, "Coordinator's address")->capture_default_str();
  up->add_option("--data-root", options->data_roots,
                 "Jobs may name files below these folders and what is trained here, / for all; "
                 "default: your home and the working folder");
  up->add_flag("--tls", options->tls,
               "Talk over TLS, with certificates that are made in the home folder: then only its "
               "owner can use the service");
  up->add_option("--metrics-listen", options->metrics_listen,
                 "Coordinator's Prometheus address; the workers take the ports after it")
      ->capture_default_str();
  up->add_flag("--metrics-insecure", options->metrics_insecure,
               "Serve metrics on another address than loopback, too, without TLS");
  up->add_option(
        "--drain-seconds", options->drain_seconds,
        "Time that ranks have to save and stop before a worker that ends kills them; `weft "
        "down` waits for it")
      ->envname("WEFT_WORKER_DRAIN_SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  AddCommand(app, session, "down", "Stop what `weft up` started; running jobs checkpoint first",
             [&session] { return Down(session); });
  AddCommand(app, session, "status", "Daemons that `weft up` started",
             [&session] { return ShowStatus(session); });
}

}  // namespace weft::cli
