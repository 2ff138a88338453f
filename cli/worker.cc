#include <iostream>

#include "cli/command.h"
#include "common/clock.h"
#include "common/model/precision.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

ExitCode List(const Session& session) {
  auto workers = session.Connect().ListWorkers();
  if (!workers.ok()) return Fail(session, workers.status());
  Listing listing{"Worker",
                  {},
                  {},
                  Table({"ID", "STATE", "CORES", "MEMORY", "ISA", "JOBS"}),
                  Table({"ID", "STATE", "HOST", "DEVICE", "CORES", "MEMORY", "ISA", "FP32", "BF16",
                         "VERSION", "HEARTBEAT", "JOBS"}),
                  false};
  for (const v1::Worker& worker : *workers) {
    const v1::WorkerProfile& profile = worker.profile();
    std::string jobs;
    for (const std::string& id : worker.job_ids()) jobs += (jobs.empty() ? "" : ",") + id;
    if (jobs.empty()) jobs = "-";
    double fp32 = 0, bf16 = 0;
    for (const v1::GemmRate& rate : profile.gemm()) {
      double& best = rate.precision() == GemmRateName(DType::kBF16) ? bf16 : fp32;
      best = std::max(best, rate.flops_per_second());
    }
    auto memory = HumanBytes(static_cast<double>(profile.memory_limit_bytes()));
    auto flops = [](double rate) { return rate > 0 ? HumanCount(rate) + "FLOP/s" : "-"; };
    const std::string& state = v1::WorkerState_Name(worker.state());
    listing.items.push_back(ProtoToJson(worker));
    listing.names.push_back("worker/" + profile.worker_id());
    listing.table.Add(
        {profile.worker_id(), state, std::to_string(profile.cores()), memory, profile.isa(), jobs});
    listing.wide.Add(
        {profile.worker_id(), state, profile.host(), profile.device(),
         std::to_string(profile.cores()), memory, profile.isa(), flops(fp32), flops(bf16),
         worker.version(),
         HumanDuration(Clock::System().UnixSeconds() - worker.last_heartbeat_at()) + " ago", jobs});
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

}  // namespace

void AddWorkerCommands(CLI::App& app, Session& session) {
  CLI::App* worker = app.add_subcommand("worker", "See the machines");
  worker->require_subcommand(1);
  AddCommand(*worker, session, "list", "List workers", [&session] { return List(session); });
}

}  // namespace weft::cli
