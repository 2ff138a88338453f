#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/env_confined.h"
#include "common/json.h"
#include "common/log.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/version.h"
#include "kernels/cpu/wait_policy.h"
#include "worker/engine/comm/file_store.h"
#include "worker/trainer/control_channel.h"
#include "worker/trainer/phases.h"

namespace weft::trainer {
namespace {

std::atomic<bool> stop_requested{false};

void OnSignal(int) {
  stop_requested = true;
}

void OnDaemonGone(bool aborted) {
  // Nothing is worth saving: checkpoints are whole at any moment, and a stop would have been
  // polite.
  _exit(aborted ? kExitRetry : kExitOrphaned);
}

/// Adds the signals of this process to what the daemon says.
class SignalledReporter : public Reporter {
 public:
  explicit SignalledReporter(Reporter* daemon) : daemon_(daemon) {}
  void Report(const RankMessage& message) override {
    if (daemon_ != nullptr) daemon_->Report(message);
  }
  bool StopRequested() override {
    return stop_requested || (daemon_ != nullptr && daemon_->StopRequested());
  }
  int64_t TakeProfileRequest() override {
    return daemon_ != nullptr ? daemon_->TakeProfileRequest() : 0;
  }
  void WatchMembership(std::function<void(const MembershipMessage&)> told) override {
    if (daemon_ != nullptr) daemon_->WatchMembership(std::move(told));
  }

 private:
  Reporter* daemon_;
};

struct Arguments {
  std::string spec_path;
  int control_fd = -1;
  std::string store_dir;
};

Result<AttemptSpec> ReadSpec(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, uint64_t{64} << 20));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(path);
  return FromJson<AttemptSpec>(Document{*std::move(json), path, {}});
}

int ExitCodeOf(const Status& status) {
  if (status.kind() == FailureKind::kDiverged) return kExitUserError;
  if (status.kind() == FailureKind::kSilentCorruption) return kExitRetry;
  switch (status.code()) {
    case StatusCode::kInvalid:
    case StatusCode::kNotFound:
      return kExitUserError;
    case StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitRetry;
  }
}

/// Files as this rank may read them: those that its job may name, and its own.
ConfinedEnv FilesOf(const AttemptSpec& spec) {
  std::vector<std::string> folders = spec.data_roots;
  if (!folders.empty()) {
    folders.insert(folders.end(), {spec.run_dir, spec.cache_dir});
    if (!spec.memory_dir.empty()) folders.push_back(spec.memory_dir);
  }
  return {folders, "--data-root of this weft-worker says which are"};
}

int Run(const AttemptSpec& spec, Reporter& reporter, engine::Store& store) {
  reporter.Report(HelloMessage{getpid(), spec.rank, spec.epoch, kVersion});
  ConfinedEnv files = FilesOf(spec);
  const auto run = [&]() -> Result<AttemptOutcome> {
    WEFT_ASSIGN_OR_RETURN(const size_t phase, PhaseToRun(spec.job));
    return RunPhase(files, spec, phase, reporter, store);
  };
  Result<AttemptOutcome> outcome = run();
  if (!outcome.ok()) {
    WEFT_LOG_ERROR << outcome.status().ToString();
    reporter.Report(ToFailed(outcome.status()));
    return ExitCodeOf(outcome.status());
  }
  if (outcome->summary) {
    reporter.Report(FinishedMessage{*outcome->summary});
  } else {
    WEFT_LOG_INFO << "stopped after step " << outcome->step;
    reporter.Report(StoppedMessage{outcome->step, outcome->checkpoint_path});
  }
  return kExitDone;
}

int Start(const Arguments& arguments) {
  Result<AttemptSpec> spec = ReadSpec(arguments.spec_path);
  if (!spec.ok()) {
    WEFT_LOG_ERROR << spec.status().message();
    return kExitUsage;
  }
  std::unique_ptr<ControlChannel> channel;
  if (arguments.control_fd >= 0) {
    // The end of file on the channel says the same, but not to a process that is stopped.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    channel = std::make_unique<ControlChannel>(arguments.control_fd, OnDaemonGone);
  }
  const std::string store_dir =
      arguments.store_dir.empty()
          ? JoinPath(spec->run_dir, "rendezvous-" + std::to_string(spec->epoch))
          : arguments.store_dir;
  engine::FileStore file_store(Env::Posix(), store_dir);
  SignalledReporter reporter(channel.get());
  return Run(*spec, reporter, channel ? static_cast<engine::Store&>(*channel) : file_store);
}

}  // namespace
}  // namespace weft::trainer

int main(int argc, char** argv) {
  using namespace weft::trainer;
  CLI::App app{"One rank of a training attempt. Started by weft-worker."};
  app.set_version_flag("--version", weft::kVersion);
  Arguments arguments;
  app.add_option("--spec", arguments.spec_path, "Attempt spec, a JSON file")->required();
  app.add_option("--control-fd", arguments.control_fd,
                 "Socket to the worker; without it the log is all that tells");
  app.add_option("--store-dir", arguments.store_dir,
                 "Without --control-fd: new folder where the ranks of the attempt meet");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kExitDone : kExitUsage;
  }
  weft::kernels::cpu::BoundSpinning();  // a worker's ranks have it from there
  weft::InitLog("trainer");
  signal(SIGPIPE, SIG_IGN);  // Gloo writes to sockets that peers may have closed
  signal(SIGTERM, OnSignal);
  signal(SIGINT, OnSignal);
  return Start(arguments);
}
