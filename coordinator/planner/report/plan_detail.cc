#include "coordinator/planner/report/plan_detail.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/planner/report/costs.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/report/save_interval.h"

namespace weft::planner {
namespace {

int64_t LargestDevice(const WorkerProfile& worker) {
  int64_t most = 0;
  for (const DeviceSpec& device : worker.devices) {
    if (device.unusable.empty()) most = std::max(most, device.memory_limit_bytes);
  }
  return most;
}

/// What a rank that holds most may have where there is least; of a plan without a place, where
/// there is most.
int64_t MemoryLimit(const JobSpec& job, const ClusterProfile& cluster,
                    const PlanCandidate& candidate, const std::vector<UsedMachine>& machines) {
  const Plan& plan = candidate.plan;
  const bool on_devices = plan.device != "cpu";
  // The limit of a rank on a GPU is the sum of two memories.
  const bool offloads = plan.offload_optimizer != "none" || plan.offload_activations != "none";
  const auto offered = [&](const WorkerProfile& worker, int64_t ranks) {
    const int64_t own = worker.memory_limit_bytes / ranks;
    return on_devices ? LargestDevice(worker) + (offloads ? own : 0) : own;
  };
  int64_t limit = 0;
  if (machines.empty()) {
    for (const WorkerProfile& worker : cluster.workers) limit = std::max(limit, offered(worker, 1));
  }
  const int64_t fullest = TotalBytes(candidate.plan.prediction.memory_per_rank);
  int64_t first = 0;
  for (const UsedMachine& machine : machines) {
    const int64_t begin = std::exchange(first, first + machine.ranks);
    bool full = on_devices && offloads;
    for (int64_t rank = begin; rank < first; ++rank) {
      full = full || BytesOfRank(candidate.plan, rank) == fullest;
    }
    if (!full) continue;
    const int64_t own = offered(*machine.worker, machine.ranks);
    limit = limit == 0 ? own : std::min(limit, own);
  }
  const int64_t asked = job.resources.memory_per_rank_bytes;
  return asked > 0 ? std::min(limit, asked) : limit;
}

/// The kind of resource on which most of the step is spent.
std::pair<std::string_view, double> Binding(const TimeBreakdown& time) {
  const std::array<std::pair<std::string_view, double>, 4> kinds = {
      {{"compute", time.gemm_seconds + time.recompute_seconds},
       {"memory bandwidth", time.memory_bound_seconds + time.optimizer_seconds},
       {"links", time.exposed_communication_seconds},
       {"fixed costs", time.overhead_seconds}}};
  return *std::max_element(kinds.begin(), kinds.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

}  // namespace

PlanDetail DetailOf(const JobSpec& job, const ClusterProfile& cluster, const ClusterCosts& costs,
                    const PlanCandidate& candidate) {
  const Plan& plan = candidate.plan;
  const std::vector<UsedMachine> machines = MachinesOf(plan, cluster);
  PlanDetail detail;
  detail.memory_limit_bytes = MemoryLimit(job, cluster, candidate, machines);
  if (!candidate.feasible) {
    const auto need = static_cast<double>(TotalBytes(plan.prediction.memory_per_rank));
    const auto limit = static_cast<double>(detail.memory_limit_bytes);
    detail.binding = candidate.lacks_cores ? "cores" : "memory";
    detail.binding_share = limit > 0 ? need / limit : 0;
    return detail;
  }
  const auto [binding, seconds] = Binding(plan.prediction.time);
  detail.binding = binding;
  detail.binding_share = seconds / plan.prediction.step_seconds;
  detail.machines = std::ssize(machines);
  detail.devices = plan.device == "cpu" ? detail.machines : RankCount(plan.mesh);
  detail.finish_seconds = static_cast<double>(job.train.steps) * plan.prediction.step_seconds;
  const RunningCost cost = CostOf(plan, cluster, costs);
  detail.price_per_hour = cost.price_per_hour;
  detail.price = cost.price_per_hour * detail.finish_seconds / 3600;
  detail.watts = cost.watts;
  detail.kilowatt_hours = cost.watts / 1000 * detail.finish_seconds / 3600;
  if (job.checkpoint.interval == "auto") {
    const SaveCosts saves = ExpectedSaveCosts(job.train, cluster, plan, detail.devices);
    detail.steps_between_saves = StepsBetweenSaves(saves);
    detail.save_stall_seconds = saves.stall_seconds;
    detail.between_failures_seconds = saves.between_failures_seconds;
  }
  return detail;
}

}  // namespace weft::planner
