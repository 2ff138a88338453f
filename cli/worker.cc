#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/terminal_text.h"
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

std::string JobsText(const v1::Worker& worker) {
  std::string jobs;
  for (const std::string& id : worker.job_ids()) jobs += (jobs.empty() ? "" : ",") + id;
  return jobs.empty() ? "-" : jobs;
}

/// "READY", with what was said of it where that is more than nothing: "READY, CORDONED".
std::string StateText(const v1::Worker& worker) {
  std::string text = v1::WorkerState_Name(worker.state());
  if (worker.scheduling() != v1::SCHEDULABLE) {
    text += ", " + v1::WorkerScheduling_Name(worker.scheduling());
  }
  return text;
}

std::string RateText(double bytes_per_second) {
  return bytes_per_second > 0 ? HumanBytes(bytes_per_second) + "/s" : "-";
}

/// "1.2 GiB/s, measured": what plans take the network from its machine to others for.
std::string NetworkText(const v1::WorkerNetwork& network) {
  switch (network.source()) {
    case v1::GIVEN:
      return RateText(network.bytes_per_second()) + ", given";
    case v1::MEASURED:
      return RateText(network.bytes_per_second()) + ", measured";
    default:
      return RateText(network.bytes_per_second()) + ", assumed";
  }
}

/// Why it is what it is.
std::string NetworkReason(const v1::Worker& worker) {
  const v1::WorkerNetwork& network = worker.network();
  if (network.source() == v1::GIVEN) return "the worker was started with --network-gbps";
  if (network.source() == v1::MEASURED) {
    std::string median = "median of what was measured to other machines";
    if (worker.profile().devices_size() == 0) return median;
    return median +
           " over TCP, where NCCL may be faster; hint: start the worker with "
           "--network-gbps where it uses RDMA or several connections";
  }
  const std::string loopback = "; taken to be as fast as loopback";
  if (worker.machine().empty()) return "unknown: the worker does not say its machine" + loopback;
  if (network.links_size() > 0) return "unknown: no measurement succeeded" + loopback;
  return "unknown: no other machine was there or free to measure" + loopback;
}

/// Everything known of a worker, in words.
ExitCode Describe(const Session& session, const std::string& name) {
  const std::string id = BareName("worker", name);
  auto workers = session.Connect().ListWorkers();
  if (!workers.ok()) return Fail(session, workers.status());
  const auto worker = std::find_if(workers->begin(), workers->end(), [&](const v1::Worker& each) {
    return each.profile().worker_id() == id;
  });
  if (worker == workers->end()) {
    return Fail(session, NotFoundError("there is no worker '" + id + "'; hint: weft worker list"));
  }
  if (session.output != OutputFormat::kTable && session.output != OutputFormat::kWide) {
    Listing listing{"Worker", {ProtoToJson(*worker)}, {"worker/" + id}, Table({}), Table({}), true};
    Print(listing, session.output, std::cout);
    return ExitCode::kOk;
  }
  const v1::WorkerProfile& profile = worker->profile();
  std::ostringstream out;
  out << "worker:      " << id << "\nstate:       " << StateText(*worker) << ", heard of "
      << HumanDuration(Clock::System().UnixSeconds() - worker->last_heartbeat_at()) << " ago\n"
      << "version:     " << worker->version()
      << "\nmachine:     " << (worker->machine().empty() ? "-" : worker->machine()) << ", at "
      << profile.host() << (profile.rack().empty() ? "" : ", rack ") << profile.rack()
      << "\nprocessor:   " << profile.cores() << " cores, " << profile.cpu_model() << " ("
      << profile.isa()
      << ")\nmemory:      " << HumanBytes(static_cast<double>(profile.memory_limit_bytes()))
      << " of " << HumanBytes(static_cast<double>(profile.memory_bytes()))
      << "\nGPUs:        " << Gpus(profile) << '\n';
  if (!worker->scheduling_why().empty()) {
    out << "why:         " << ForOneLine(worker->scheduling_why()) << '\n';
  }
  if (const std::string unusable = UnusableGpus(profile); unusable != "-") {
    out << "unusable:    " << unusable << '\n';
  }
  if (worker->suspicion() > 0) {
    out << "suspicion:   " << FixedText(worker->suspicion(), 1)
        << " failures lately that may have been its own\n";
  }
  out << "jobs:        " << JobsText(*worker)
      << "\nloopback:    " << RateText(profile.loopback_bytes_per_second())
      << "\nnetwork:     " << NetworkText(worker->network()) << " (" << NetworkReason(*worker)
      << ")\n";
  if (worker->network().links_size() > 0) {
    Table links({"TO MACHINE", "RATE", "LATENCY", "MEASURED"});
    for (const v1::NetworkLink& link : worker->network().links()) {
      if (link.error().empty()) {
        links.Add({link.machine(), RateText(link.bytes_per_second()),
                   FixedText(link.latency_seconds() * 1e6, 0) + " us",
                   FormatTime(link.measured_at())});
      } else {
        links.Add({link.machine(), "-", "-", "not: " + link.error()});
      }
    }
    links.Print(out);
  }
  std::cout << ForTerminal(out.str());
  return ExitCode::kOk;
}

ExitCode List(const Session& session) {
  auto workers = session.Connect().ListWorkers();
  if (!workers.ok()) return Fail(session, workers.status());
  Listing listing{"Worker",
                  {},
                  {},
                  Table({"ID", "STATE", "CORES", "MEMORY", "ISA", "GPUS", "JOBS"}),
                  Table({"ID", "STATE", "HOST", "MACHINE", "RACK", "DEVICE", "CORES", "MEMORY",
                         "ISA", "FP32", "BF16", "NETWORK", "GPUS", "GPU BF16", "UNUSABLE GPUS",
                         "VERSION", "HEARTBEAT", "JOBS"}),
                  false};
  for (const v1::Worker& worker : *workers) {
    const v1::WorkerProfile& profile = worker.profile();
    const std::string jobs = JobsText(worker);
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
    const std::string state = StateText(worker);
    listing.items.push_back(ProtoToJson(worker));
    listing.names.push_back("worker/" + profile.worker_id());
    listing.table.Add({profile.worker_id(), state, std::to_string(profile.cores()), memory,
                       profile.isa(), Gpus(profile), jobs});
    listing.wide.Add(
        {profile.worker_id(), state, profile.host(),
         worker.machine().empty() ? "-" : worker.machine(),
         profile.rack().empty() ? "-" : profile.rack(), profile.device(),
         std::to_string(profile.cores()), memory, profile.isa(), flops(fp32), flops(bf16),
         NetworkText(worker.network()), Gpus(profile), flops(gpu_bf16), UnusableGpus(profile),
         worker.version(),
         HumanDuration(Clock::System().UnixSeconds() - worker.last_heartbeat_at()) + " ago", jobs});
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

ExitCode SetScheduling(const Session& session, const v1::SetWorkerSchedulingRequest& request) {
  auto worker = session.Connect().SetWorkerScheduling(request);
  if (!worker.ok()) return Fail(session, worker.status());
  const std::string& id = worker->profile().worker_id();
  if (session.output == OutputFormat::kTable || session.output == OutputFormat::kWide) {
    std::cout << "worker " << id << ' ' << StateText(*worker) << '\n';
    return ExitCode::kOk;
  }
  Listing listing{"Worker", {ProtoToJson(*worker)}, {"worker/" + id}, Table({}), Table({}), true};
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

void AddScheduling(CLI::App& parent, Session& session, const std::string& name,
                   const std::string& description, v1::WorkerScheduling scheduling) {
  auto request = std::make_shared<v1::SetWorkerSchedulingRequest>();
  request->set_scheduling(scheduling);
  CLI::App* command = AddCommand(parent, session, name, description,
                                 [&session, request] { return SetScheduling(session, *request); });
  command->add_option("worker", *request->mutable_worker_id(), "Worker id")->required();
  if (scheduling != v1::SCHEDULABLE) {
    command->add_option("--why", *request->mutable_why(), "For people; shown with the worker");
  }
}

ExitCode Forget(const Session& session, const std::string& name) {
  const std::string id = BareName("worker", name);
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
  AddCommand(*worker, session, "describe",
             "Everything known of a worker: machine, GPUs, jobs, network to other machines",
             [&session, id] { return Describe(session, *id); })
      ->add_option("worker", *id, "Worker id")
      ->required();
  CLI::App* forget =
      AddCommand(*worker, session, "forget", "Forget a worker that will not come back",
                 [&session, id] { return Forget(session, *id); });
  forget->add_option("worker", *id, "Worker id")->required();
  AddScheduling(*worker, session, "cordon", "Put no new ranks on a worker", v1::CORDONED);
  AddScheduling(*worker, session, "uncordon", "Let a worker have jobs again", v1::SCHEDULABLE);
  AddScheduling(*worker, session, "drain",
                "Have the jobs of a worker save and go on elsewhere, and put no others on it",
                v1::DRAINING);
  AddScheduling(*worker, session, "quarantine", "The same of one that is not to be trusted",
                v1::QUARANTINED);
}

}  // namespace weft::cli
