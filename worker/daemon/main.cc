#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/env.h"
#include "common/http/address.h"
#include "common/http/server.h"
#include "common/json.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "common/version.h"
#include "kernels/cpu/wait_policy.h"
#include "worker/daemon/agent.h"
#include "worker/daemon/data_dir.h"
#include "worker/daemon/device_monitor.h"
#include "worker/daemon/device_rates.h"
#include "worker/daemon/devices.h"
#include "worker/daemon/health.h"
#include "worker/daemon/machine.h"
#include "worker/daemon/machine_check.h"
#include "worker/daemon/options.h"
#include "worker/daemon/probe.h"
#include "worker/daemon/process_scan.h"
#include "worker/daemon/snapshot_folder.h"

namespace weft::daemon {
namespace {

namespace asio = boost::asio;

/// Share of the machine's memory that is offered when the user does not say how much: the rest is
/// for this daemon, the kernel and the file cache.
constexpr double kOfferedMemory = 0.9;

int Fail(const Status& status, int exit_code) {
  std::cerr << "weft-worker: " << status.message() << std::endl;
  return exit_code;
}

std::string NewIncarnation() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random() << '-' << getpid();
  return text.str();
}

Result<std::string> FindTrainer(const std::string& chosen) {
  std::error_code error;
  std::string path = chosen;
  if (path.empty()) {
    path = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "weft-trainer";
  }
  path = std::filesystem::absolute(path, error);
  if (access(path.c_str(), X_OK) == 0) return path;
  return NotFoundError("no program at " + path +
                       "; hint: install weft-trainer next to weft-worker, or give --trainer PATH");
}

Result<std::string> FindRunRoot(const std::string& chosen) {
  if (chosen.empty()) return chosen;
  WEFT_RETURN_IF_ERROR(Env::Posix().CreateDirs(chosen));
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(chosen, error);
  if (error) return InvalidError("--run-root " + chosen + ": " + error.message());
  return path.string();
}

Result<WorkerProfile> Profile(const Options& options, const DataDir& data,
                              const std::string& run_root) {
  Machine machine = ReadMachine();
  const int64_t processors = machine.cores;
  if (options.cores > 0) machine.cores = options.cores;
  WEFT_ASSIGN_OR_RETURN(
      WorkerProfile profile,
      MeasuredProfile(machine, data.ProfilePath(), run_root.empty() ? data.path() : run_root,
                      options.reprobe));
  profile.worker_id = data.worker_id();
  profile.processors = processors < profile.cores ? processors : 0;
  profile.memory_limit_bytes =
      options.memory_limit_bytes > 0
          ? static_cast<int64_t>(options.memory_limit_bytes)
          : std::llround(kOfferedMemory * static_cast<double>(machine.memory_limit_bytes));
  // What the user says of the network goes before what is measured.
  profile.network_bytes_per_second = options.network_gbps * 1e9 / 8;
  profile.rack = options.rack;
  profile.host = options.host;
  if (profile.host.empty()) {
    WEFT_ASSIGN_OR_RETURN(profile.host, AddressTowards(options.coordinator));
  }
  return profile;
}

/// Between looks for space on a full disk.
constexpr std::chrono::seconds kSpacePause{2};

/// How often GPUs are asked what they do.
constexpr std::chrono::seconds kSampleEvery{5};

/// NVIDIA's library where there is one; null elsewhere, which is no error.
std::unique_ptr<Nvml> LoadNvml() {
  Result<std::unique_ptr<Nvml>> nvml = Nvml::Load();
  if (nvml.ok()) return std::move(*nvml);
  WEFT_LOG_INFO << "no GPUs: " << nvml.status().message();
  return nullptr;
}

std::string OwnProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

Status AddDevices(const Options& options, const DataDir& data, const Nvml& nvml,
                  WorkerProfile& profile) {
  DeviceChoice choice;
  choice.offered = options.devices;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) choice.visible = visible;
  const std::string self = OwnProgram();
  WEFT_ASSIGN_OR_RETURN(profile.devices, FindDevices(
                                             nvml, choice,
                                             [&](const auto& devices, size_t which) {
                                               return MeasureInProcess(self, devices, which);
                                             },
                                             data.DevicesPath(), options.reprobe));
  for (const DeviceSpec& device : profile.devices) {
    WEFT_LOG_INFO << "GPU " << device.index << ": " << device.name << ", " << device.uuid
                  << (device.unusable.empty() ? "" : ", not used: ") << device.unusable;
    if (device.unusable.empty()) profile.device = device.device;
  }
  return OkStatus();
}

std::map<int64_t, std::string> CudaNames(const WorkerProfile& profile) {
  std::map<int64_t, std::string> names;
  for (const DeviceSpec& device : profile.devices) {
    if (device.unusable.empty()) names[device.index] = CudaName(device);
  }
  return names;
}

/// Best rate of one of the measured units, by precision.
std::map<std::string, double> BestFlops(const std::vector<GemmRate>& rates) {
  std::map<std::string, double> best;
  for (const GemmRate& rate : rates) {
    double& value = best[rate.precision];
    value = std::max(value, rate.flops_per_second / static_cast<double>(rate.threads));
  }
  return best;
}

/// FLOP rates of the fastest usable GPU, by precision.
std::map<std::string, double> FlopsPerDevice(const WorkerProfile& profile) {
  std::vector<GemmRate> rates;
  for (const DeviceSpec& device : profile.devices) {
    rates.insert(rates.end(), device.gemm.begin(), device.gemm.end());
  }
  return BestFlops(rates);
}

/// Samples and events of all GPUs, brought to the agent's thread.
std::unique_ptr<DeviceMonitor> Watch(const Nvml* nvml, asio::io_context& io, Agent& agent,
                                     Metrics& metrics) {
  if (nvml == nullptr || nvml->count() == 0) return nullptr;
  std::vector<int> indices(static_cast<size_t>(nvml->count()));
  std::iota(indices.begin(), indices.end(), 0);
  DeviceMonitor::Listener listener;
  listener.on_sample = [&io, &metrics](int index, const DeviceSample& sample) {
    asio::post(io, [&metrics, index, sample] { metrics.devices().Set(index, sample); });
  };
  listener.on_event = [&io, &agent](const DeviceEvent& event) {
    asio::post(io, [&agent, event] { agent.OnDevice(event); });
  };
  return std::make_unique<DeviceMonitor>(*nvml, std::move(indices), kSampleEvery,
                                         std::move(listener));
}

/// Runs until drained or refused; the exit code.
int RunAgent(const Options& options, const Agent::Settings& settings, const Nvml* nvml,
             Metrics& metrics, Health& health, int metrics_port) {
  asio::io_context io;
  int exit_code = kExitOk;
  Agent agent(io, Clock::System(), settings, metrics, [&](const Status& status) {
    if (!status.ok()) exit_code = Fail(status, kExitRefused);
    io.stop();
  });
  asio::signal_set stop_signals(io, SIGTERM, SIGINT);
  std::function<void()> wait_for_stop = [&] {
    stop_signals.async_wait([&](const boost::system::error_code& error, int /*signal*/) {
      if (error) return;
      agent.Drain(std::chrono::duration<double>(options.drain_seconds));
      wait_for_stop();
    });
  };
  wait_for_stop();
  asio::signal_set child_signals(io, SIGCHLD);
  std::function<void()> wait_for_child = [&] {
    child_signals.async_wait([&](const boost::system::error_code& error, int /*signal*/) {
      if (error) return;
      agent.ReapChildren();
      wait_for_child();
    });
  };
  wait_for_child();

  agent.Start();
  std::unique_ptr<DeviceMonitor> monitor = Watch(nvml, io, agent, metrics);
  std::cout << "weft-worker " << kVersion << " ready: worker " << settings.profile.worker_id << ", "
            << settings.profile.cores << " cores, " << settings.attempt.devices.size()
            << " GPUs, coordinator " << options.coordinator << ", metrics port " << metrics_port
            << std::endl;
  health.Serve(io);
  io.run();
  health.Stop();
  return exit_code;
}

/// The errand of MeasureInProcess.
int PrintRates(int device) {
  Result<DeviceSpec> rates = MeasureRates(device);
  if (!rates.ok()) {
    std::cout << rates.status().message() << std::endl;
    return kExitInternal;
  }
  std::cout << ToJson(*rates).dump() << std::endl;
  return kExitOk;
}

/// The errand of HealthCheck.
int PrintCheck(int64_t cores) {
  Result<MachineCheck> check = CheckMachine(cores);
  if (!check.ok()) {
    std::cout << check.status().message() << std::endl;
    return kExitInternal;
  }
  std::cout << ToJson(*check).dump() << std::endl;
  return kExitOk;
}

/// What a daemon needs before it can work, in the order in which it is made.
struct Parts {
  std::optional<DataDir> data;
  std::string trainer;
  std::string run_root;
  WorkerProfile profile;
  std::unique_ptr<Nvml> nvml;
};

std::string OwnerOf(const DataDir& data) {
  return "WEFT_RANK_OWNER=" + data.path();
}

/// Fills in what is missing; kExhausted when the disk is full, and then may be called again.
Status MakeParts(const Options& options, const http::Server* pages, Parts& parts) {
  if (!parts.data) {
    WEFT_ASSIGN_OR_RETURN(DataDir data, DataDir::Open(options.data_dir, options.worker_id));
    parts.data.emplace(std::move(data));
    // Ranks die with their daemon; should one have lived on, it goes before its successors come.
    WEFT_RETURN_IF_ERROR(KillProcesses({OwnerOf(*parts.data)}, std::chrono::seconds(5)));
  }
  WEFT_ASSIGN_OR_RETURN(parts.trainer, FindTrainer(options.trainer));
  WEFT_ASSIGN_OR_RETURN(parts.run_root, FindRunRoot(options.run_root));
  WEFT_ASSIGN_OR_RETURN(parts.profile, Profile(options, *parts.data, parts.run_root));
  if (!parts.nvml) parts.nvml = LoadNvml();
  if (parts.nvml) {
    WEFT_RETURN_IF_ERROR(AddDevices(options, *parts.data, *parts.nvml, parts.profile));
  }
  return WriteHealthFile(parts.data->path(), pages);
}

/// The same, waiting for space on a full disk: nothing can run there, but probes are answered.
Status AwaitParts(const Options& options, const http::Server* pages, Health& health, Parts& parts) {
  std::string told;
  while (true) {
    Status status = MakeParts(options, pages, parts);
    if (status.code() != StatusCode::kExhausted) return status;
    if (told != status.message()) {
      WEFT_LOG_ERROR << status.message() << "; waiting for space";
    }
    told = status.message();
    health.Wait("waiting for space: " + told);
    std::this_thread::sleep_for(kSpacePause);
  }
}

/// Addresses, files and certificates, before anything is done with them. Whoever commands this
/// worker from another machine gets the files of the folders that are given, and no others.
Status CheckSecurity(const Options& options) {
  if (!options.tls.empty()) WEFT_RETURN_IF_ERROR(tls::ReadCredentials(options.tls).status());
  if (!options.metrics_listen.empty()) {
    WEFT_RETURN_IF_ERROR(http::CheckPlainPages(options.metrics_listen, options.metrics_insecure)
                             .WithContext("--metrics-listen"));
  }
  WEFT_ASSIGN_OR_RETURN(const http::HostPort parts, http::ParseAddress(options.coordinator));
  if (http::IsLoopback(parts.host)) return OkStatus();
  if (options.data_roots.empty() || options.run_root.empty()) {
    return InvalidError(
        "jobs of a coordinator on another machine could read and write every file "
        "that this user can; hint: --run-root DIR and --data-root DIR say which "
        "folders they may name, and / allows all");
  }
  if (options.tls.empty() && !options.insecure) {
    return InvalidError("without TLS, whoever is on the way to the coordinator at " +
                        options.coordinator +
                        " could read jobs and command this worker; hint: --tls-cert and --tls-ca "
                        "(docs/security.md), or --insecure if the network is yours alone");
  }
  return OkStatus();
}

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kConflict:
      return kExitInUse;
    case StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitUsage;
  }
}

int Run(const Options& options) {
  if (Status s = CheckSecurity(options); !s.ok()) return Fail(s, kExitUsage);
  Metrics metrics(Clock::System());
  metrics.WatchCertificate(options.tls.certificate);
  Health health(metrics);
  std::unique_ptr<http::Server> pages;
  if (!options.metrics_listen.empty()) {
    Result<std::unique_ptr<http::Server>> listening =
        http::Server::Listen(options.metrics_listen, health.Pages());
    if (!listening.ok()) {
      return Fail(listening.status().WithContext("--metrics-listen"),
                  listening.status().code() == StatusCode::kInvalid ? kExitUsage : kExitInUse);
    }
    pages = std::move(*listening);
  }
  Parts parts;
  if (Status s = AwaitParts(options, pages.get(), health, parts); !s.ok()) {
    return Fail(s, ExitCodeOf(s));
  }
  const WorkerProfile& profile = parts.profile;
  for (const DeviceSpec& device : profile.devices) metrics.devices().Add(device);
  metrics.SetWorker(profile.worker_id, profile.cores, profile.memory_limit_bytes);

  int exit_code =
      RunAgent(options,
               {options.coordinator,
                NewIncarnation(),
                options.machine.empty() ? MachineName() : options.machine,
                profile,
                parts.data->LogDir(),
                {parts.trainer, profile.host, parts.data->CacheDir(), parts.run_root,
                 parts.data->SpecDir(), BestFlops(profile.gemm), OwnerOf(*parts.data),
                 CudaNames(profile), FlopsPerDevice(profile), FromSeconds(options.spin_seconds),
                 options.data_roots, SnapshotFolder(options.snapshot_dir, parts.data->path())},
                parts.data->UnsentPath(),
                OwnProgram(),
                options.tls},
               parts.nvml.get(), metrics, health, pages != nullptr ? pages->port() : 0);
  // Nothing is left that needs an end.
  std::cout.flush();
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace weft::daemon

int main(int argc, char** argv) {
  weft::daemon::Options options;
  int exit_code = 0;
  if (!weft::daemon::ParseOptions(argc, argv, options, exit_code)) return exit_code;
  if (options.measure_device >= 0) return weft::daemon::PrintRates(options.measure_device);
  if (options.check_machine > 0) return weft::daemon::PrintCheck(options.check_machine);
  if (options.healthcheck) return weft::daemon::CheckHealth(options.data_dir);
  weft::kernels::cpu::BoundSpinning();  // measurements compute, and ranks have this environment
  weft::InitLog("worker");
  // Writing to a rank that has just died is an error to handle, not a reason to end.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // so is a file that may not grow
  return weft::daemon::Run(options);
}
