#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/follow.h"
#include "cli/job_file.h"
#include "cli/profile_table.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/phases.h"
#include "coordinator/planner/planner.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/wait_policy.h"
#include "worker/daemon/device_rates.h"
#include "worker/daemon/devices.h"
#include "worker/daemon/nvml.h"
#include "worker/daemon/progress.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/trainer/phases.h"

namespace weft::cli {
namespace {

std::atomic<bool> interrupted{false};

/// Shows an attempt of this process the way `weft job wait` shows one of the cluster.
class ViewReporter : public trainer::Reporter {
 public:
  /// `profile_steps`: to record, from the second step on; 0 for none.
  ViewReporter(const AttemptSpec& whole, int64_t profile_steps)
      : whole_(whole.job),
        view_(std::cout, isatty(STDOUT_FILENO) != 0),
        profile_steps_(profile_steps) {
    job_.set_id(whole.job_id);
    job_.set_state(v1::STARTING);
  }

  /// What is reported from now on is of that phase.
  void BeginPhase(size_t phase) {
    std::lock_guard lock(mutex_);
    if (whole_.phases.empty()) return;
    phase_ = PhaseTitle(whole_, phase);
    progress_ = daemon::ProgressRecord(daemon::PlaceOfPhase(whole_, phase));
  }

  void Report(const trainer::RankMessage& message) override {
    std::lock_guard lock(mutex_);
    std::visit([this](const auto& m) { Take(m); }, message);
    *job_.mutable_progress() = progress_.message();
    view_.Update(job_);
  }
  bool StopRequested() override { return interrupted; }
  int64_t TakeProfileRequest() override { return std::exchange(profile_steps_, 0); }

  /// Unset until the recording is done.
  const std::optional<trainer::ProfiledMessage>& profiled() const { return profiled_; }

  void Finish(v1::JobState state, const std::string& message) {
    std::lock_guard lock(mutex_);
    job_.set_state(state);
    job_.set_message(message);
    view_.Update(job_);
    view_.Finish();
  }

 private:
  void Take(const trainer::StartedMessage& m) {
    job_.set_state(v1::RUNNING);
    const std::string resumed = m.resumed_from.empty() ? "" : "resumed from " + m.resumed_from;
    job_.set_message(phase_ + (phase_.empty() || resumed.empty() ? "" : ", ") + resumed);
  }
  void Take(const trainer::ProgressMessage& m) { progress_.Take(m); }
  void Take(const trainer::EvaluationMessage& m) { progress_.Take(m); }
  void Take(const trainer::CheckpointMessage& m) {
    progress_.Take(m);
    if (m.state == "failed") job_.set_message("checkpoint failed: " + m.error);
  }
  void Take(const trainer::EventMessage& m) { job_.set_message(m.text); }
  void Take(const trainer::ProfiledMessage& m) { profiled_ = m; }
  template <class Other>
  void Take(const Other&) {}

  const JobSpec& whole_;
  std::string phase_;  ///< For people.
  std::mutex mutex_;
  FollowView view_;
  v1::Job job_;
  daemon::ProgressRecord progress_;
  int64_t profile_steps_;  // asked for by the training thread only
  std::optional<trainer::ProfiledMessage> profiled_;
};

/// GPUs of this machine. The first that CUDA_VISIBLE_DEVICES leaves has its rates, which are
/// measured once, and is the one that this process sees as CUDA device 0; the others have a reason
/// why they are not used.
Result<std::vector<DeviceSpec>> FindOneDevice() {
  const auto nvml = daemon::Nvml::Load();
  if (!nvml.ok()) return std::vector<DeviceSpec>();
  const auto show = [](const DeviceSpec& device) {
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    setenv("CUDA_VISIBLE_DEVICES", daemon::CudaName(device).c_str(), 1);
  };
  const std::string not_used = "`weft train` runs one rank, on the first GPU";
  const auto measure = [&](const std::vector<DeviceSpec>& devices, size_t which) {
    if (which > 0) return Result<DeviceSpec>(UnavailableError(not_used));
    show(devices[which]);
    return daemon::MeasureRates(0);
  };
  WEFT_RETURN_IF_ERROR(Env::Posix().CreateDirs(HomeDir()));
  daemon::DeviceChoice choice;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) choice.visible = visible;
  WEFT_ASSIGN_OR_RETURN(std::vector<DeviceSpec> devices,
                        daemon::FindDevices(**nvml, choice, measure,
                                            JoinPath(HomeDir(), "devices.json"), /*again=*/false));
  bool found = false;
  for (DeviceSpec& device : devices) {
    if (!device.unusable.empty()) continue;
    if (found) device.unusable = not_used;
    if (!found) show(device);
    found = true;
  }
  return devices;
}

/// This machine: what can be known of it without measuring, and a GPU.
Result<ClusterProfile> ThisMachine() {
  WorkerProfile machine;
  machine.worker_id = "local";
  machine.host = "127.0.0.1";
  machine.cores = std::max(1U, std::thread::hardware_concurrency());
  machine.isa = kernels::cpu::IsaName(kernels::cpu::ProcessIsa());
  machine.memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  machine.memory_limit_bytes = machine.memory_bytes;
  WEFT_ASSIGN_OR_RETURN(machine.devices, FindOneDevice());
  for (const DeviceSpec& device : machine.devices) {
    if (device.unusable.empty()) machine.device = device.device;
  }
  return ClusterProfile{{machine}};
}

struct TrainOptions {
  std::string file;
  std::string run_dir;
  int64_t profile_steps = 0;
};

/// What is run: the attempt at the whole job, and the plans of its phases.
struct PlannedRun {
  AttemptSpec whole;
  std::vector<Plan> plans;
};

Result<PlannedRun> PlanRun(const TrainOptions& options) {
  WEFT_ASSIGN_OR_RETURN(JobSpec job, LoadJobFile(options.file, DataCheck::kAll));
  ResourceSpec& resources = job.resources;
  if (const int64_t least = std::max(resources.ranks, resources.min_ranks); least > 1) {
    const std::string field = resources.ranks > 0 ? "resources.ranks" : "resources.min_ranks";
    return InvalidError(field + " is " + std::to_string(least) +
                        ", but `weft train` runs one rank in one process; hint: `weft up` and "
                        "`weft submit` run several");
  }
  resources.ranks = 1;
  resources.min_ranks = resources.max_ranks = 0;
  PlannedRun run;
  AttemptSpec& whole = run.whole;
  whole.job_id = job.name;
  whole.epoch = 1;
  whole.host = "127.0.0.1";
  std::string folder = options.run_dir.empty() ? "runs/" + job.name : options.run_dir;
  std::error_code error;
  whole.run_dir = std::filesystem::absolute(folder, error).lexically_normal();
  whole.cache_dir = JoinPath(HomeDir(), "cache");
  whole.job = std::move(job);
  WEFT_ASSIGN_OR_RETURN(ClusterProfile machine, ThisMachine());
  for (size_t i = 0; i < PhaseCount(whole.job); ++i) {
    WEFT_ASSIGN_OR_RETURN(PlanReport report,
                          planner::PlanJobPassing(PlannedJobOfPhase(whole.job, i), machine,
                                                  planner::CheckOfPhase(whole.job, i)));
    run.plans.push_back(std::move(report.candidates.front().plan));
  }
  return run;
}

ExitCode Train(const Session& session, const TrainOptions& options) {
  kernels::cpu::BoundSpinning();
  const auto run = PlanRun(options);
  if (!run.ok()) return Fail(session, run.status());
  // The first Ctrl-C saves a checkpoint and stops; the second one kills.
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  ViewReporter reporter(run->whole, options.profile_steps);
  engine::HashStore store;
  auto outcome = trainer::RunPhases(
      Env::Posix(), run->whole, run->plans, [&](size_t phase) { reporter.BeginPhase(phase); },
      reporter, store);
  if (!outcome.ok()) {
    reporter.Finish(v1::FAILED, "");
    return Fail(session, outcome.status());
  }
  if (const auto& profiled = reporter.profiled(); profiled && profiled->error.empty()) {
    PrintProfile(profiled->report, session.output, std::cout);
  } else if (profiled) {
    return Fail(session, UnavailableError(profiled->error));
  } else if (options.profile_steps > 0) {
    return Fail(session, ConflictError("no step was left to record: the first one is left out"));
  }
  if (!outcome->summary.has_value()) {
    reporter.Finish(v1::CANCELLED,
                    "stopped; the same command goes on from " +
                        (outcome->checkpoint_path.empty() ? std::string("the newest checkpoint")
                                                          : outcome->checkpoint_path));
    return ExitCode::kInterrupted;
  }
  reporter.Finish(v1::SUCCEEDED, "results in " + run->whole.run_dir);
  return ExitCode::kOk;
}

}  // namespace

void AddTrainCommand(CLI::App& app, Session& session) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command =
      AddCommand(app, session, "train", "Run a job in this process, without daemons",
                 [&session, options] { return Train(session, *options); });
  command->add_option("file", options->file, "Job file, YAML or JSON")->required();
  command->add_option("--run-dir", options->run_dir,
                      "Folder of the results; a second run goes on from its newest checkpoint "
                      "(default: runs/<name>)");
  command
      ->add_option("--profile", options->profile_steps,
                   "Record this many steps after the first: where their time goes")
      ->check(CLI::Range(int64_t{1}, trainer::kMaxProfileSteps));
}

}  // namespace weft::cli
