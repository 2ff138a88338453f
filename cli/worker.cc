#include <iostream>
#include <map>
#include <memory>

#include "cli/command.h"
#include "common/clock.h"
#include "common/model/precision.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// "8 x NVIDIA H100 80GB HBM3", by model, with those that are out of use: "2 x ..., 1 unusable".
std::string Gpus(const v1::WorkerProfile& profile) {
  std::map<std::string, int> models;
  int unusable = 0;
  for (const v1::DeviceSpec& device : profile.devices()) {
    ++models[device.name().empty() ? "GPU" : device.name()];
    if (!device.unusable().empty()) ++unusable;
  }
  std::string text;
  for (const auto& [model, count] : models) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " x " + model;
  }
  if (unusable > 0) text += ", " + std::to_string(unusable) + " unusable";
  return text.empty() ? "-" : text;
}

/// What is wrong with each GPU on which no rank runs.
std::string UnusableGpus(const v1::WorkerProfile& profile) {
  std::string text;
  for (const v1::DeviceSpec& device : profile.devices()) {
    if (device.unusable().empty()) continue;
    text += (text.empty() ? "" : "; ") + std::to_string(device.index()) + ": " + device.unusable();
  }
  return text.empty() ? "-" : text;
}

ExitCode List(const Session& session) {
  auto workers = session.Connect().ListWorkers();
  if (!workers.ok()) return Fail(session, workers.status());
  Listing listing{"Worker",
                  {},
                  {},
                  Table({"ID", "STATE", "CORES", "MEMORY", "ISA", "GPUS", "JOBS"}),
                  Table({"ID", "STATE", "HOST", "DEVICE", "CORES", "MEMORY", "ISA", "FP32", "BF16",
                         "GPUS", "GPU BF16", "UNUSABLE GPUS", "VERSION", "HEARTBEAT", "JOBS"}),
                  false};
  for (const v1::Worker& worker : *workers) {
    const v1::WorkerProfile& profile = worker.profile();
    std::string jobs;
    for (const std::string& id : worker.job_ids()) jobs += (jobs.empty() ? "" : ",") + id;
    if (jobs.empty()) jobs = "-";
    double fp32 = 0, bf16 = 0, gpu_bf16 = 0;
    for (const v1::DeviceSpec& device : profile.devices()) {
      for (const v1::GemmRate& rate : device.gemm()) {
        if (rate.precision() == GemmRateName(DType::kBF16)) {
          gpu_bf16 = std::max(gpu_bf16, rate.flops_per_second());
        }
      }
    }
    for (const v1::GemmRate& rate : profile.gemm()) {
      double& best = rate.precision() == GemmRateName(DType::kBF16) ? bf16 : fp32;
      best = std::max(best, rate.flops_per_second());
    }
    auto memory = HumanBytes(static_cast<double>(profile.memory_limit_bytes()));
    auto flops = [](double rate) { return rate > 0 ? HumanCount(rate) + "FLOP/s" : "-"; };
    const std::string& state = v1::WorkerState_Name(worker.state());
    listing.items.push_back(ProtoToJson(worker));
    listing.names.push_back("worker/" + profile.worker_id());
    listing.table.Add({profile.worker_id(), state, std::to_string(profile.cores()), memory,
                       profile.isa(), Gpus(profile), jobs});
    listing.wide.Add(
        {profile.worker_id(), state, profile.host(), profile.device(),
         std::to_string(profile.cores()), memory, profile.isa(), flops(fp32), flops(bf16),
         Gpus(profile), flops(gpu_bf16), UnusableGpus(profile), worker.version(),
         HumanDuration(Clock::System().UnixSeconds() - worker.last_heartbeat_at()) + " ago", jobs});
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

ExitCode Forget(const Session& session, const std::string& id) {
  Status status = session.Connect().ForgetWorker(id);
  if (!status.ok()) return Fail(session, status);
  if (!session.quiet && session.output == OutputFormat::kTable) {
    std::cout << "worker " << id << " is forgotten\n";
  }
  return ExitCode::kOk;
}

}  // namespace

void AddWorkerCommands(CLI::App& app, Session& session) {
  CLI::App* worker = app.add_subcommand("worker", "See the machines");
  worker->require_subcommand(1);
  AddCommand(*worker, session, "list", "List workers", [&session] { return List(session); });
  auto id = std::make_shared<std::string>();
  CLI::App* forget =
      AddCommand(*worker, session, "forget", "Forget a worker that will not come back",
                 [&session, id] { return Forget(session, *id); });
  forget->add_option("worker", *id, "Worker id")->required();
}

}  // namespace weft::cli
