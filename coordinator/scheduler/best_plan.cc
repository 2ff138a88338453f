#include "coordinator/scheduler/best_plan.h"

#include <algorithm>

#include "common/spec/offload.h"
#include "common/spec/technique_checks.h"

namespace weft::coordinator {
namespace {

JobSpec WithMemoryLimit(const JobSpec& spec, int64_t bytes) {
  JobSpec limited = spec;
  int64_t& limit = limited.resources.memory_per_rank_bytes;
  limit = limit > 0 ? std::min(limit, bytes) : std::max<int64_t>(bytes, 1);
  return limited;
}

}  // namespace

std::vector<DeviceSpec> FreeDevices(const WorkerProfile& worker, const FreeCapacity& free) {
  std::vector<DeviceSpec> devices;
  for (const DeviceSpec& device : worker.devices) {
    if (free.devices.contains(device.index)) devices.push_back(device);
  }
  return devices;
}

FreeMap AllFree(const ClusterProfile& cluster) {
  FreeMap all;
  for (const WorkerProfile& worker : cluster.workers) {
    FreeCapacity& free = all[worker.worker_id];
    free = {worker.cores, worker.memory_limit_bytes, {}};
    for (const DeviceSpec& device : worker.devices) {
      if (device.unusable.empty()) free.devices.insert(device.index);
    }
  }
  return all;
}

ClusterProfile FreePart(const ClusterProfile& cluster, const FreeMap& free) {
  ClusterProfile part;
  for (WorkerProfile worker : cluster.workers) {
    auto it = free.find(worker.worker_id);
    if (it == free.end() || it->second.cores < 1) continue;
    worker.cores = it->second.cores;
    worker.memory_limit_bytes = it->second.memory_bytes;
    worker.devices = FreeDevices(worker, it->second);
    part.workers.push_back(std::move(worker));
  }
  return part;
}

JobSpec WithDevice(const JobSpec& spec, const Plan* last_plan, const ClusterProfile& cluster) {
  JobSpec said = spec;
  if (said.train.precision == "auto" && last_plan != nullptr) {
    SetPrecision(said, last_plan->precision);
  }
  if (said.resources.device != "auto") return said;
  const bool devices =
      last_plan != nullptr
          ? OnDevices(*last_plan)
          : !NeedsCpus(spec) &&
                std::any_of(cluster.workers.begin(), cluster.workers.end(),
                            [](const WorkerProfile& worker) { return worker.device == "cuda"; });
  said.resources.device = devices ? "cuda" : "cpu";
  return said;
}

JobSpec WithLessMemory(const JobSpec& spec, const Plan& plan) {
  return WithMemoryLimit(spec, TotalBytes(plan.prediction.memory_per_rank) / 20 * 17);
}

Result<Plan> BestPlan(const JobSpec& spec, const ClusterProfile& cluster,
                      const PlanFunction& plan) {
  WEFT_ASSIGN_OR_RETURN(PlanReport report, plan(spec, cluster));
  for (const PlanCandidate& candidate : report.candidates) {
    if (candidate.chosen && candidate.feasible) return candidate.plan;
  }
  if (report.candidates.empty()) return ExhaustedError("no plan fits the workers");
  return ExhaustedError(report.candidates.front().reason);
}

Result<Plan> BetterPlan(const JobSpec& spec, const Plan& present, bool ran_out_of_memory,
                        const ClusterProfile& cluster, const PlanFunction& plan) {
  if (!ran_out_of_memory) return BestPlan(spec, cluster, plan);
  return BestPlan(WithMemoryLimit(spec, TotalBytes(present.prediction.memory_per_rank)), cluster,
                  plan);
}

}  // namespace weft::coordinator
