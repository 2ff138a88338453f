#include "coordinator/scheduler/scheduler.h"

#include <algorithm>

namespace weft::coordinator {
namespace {

int64_t RankBytes(const Plan& plan) {
  const MemoryBreakdown& m = plan.prediction.memory_per_rank;
  return m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes + m.activations_bytes +
         m.workspace_bytes + m.communication_bytes + m.runtime_bytes;
}

/// Whether one more rank fits; takes its share if so.
bool TakeRank(const Plan& plan, FreeCapacity& free) {
  int64_t bytes = RankBytes(plan);
  if (free.cores < plan.threads_per_rank || free.memory_bytes < bytes) return false;
  free.cores -= plan.threads_per_rank;
  free.memory_bytes -= bytes;
  return true;
}

/// All ranks where the plan puts them.
bool Fits(const Plan& plan, std::map<std::string, FreeCapacity> free) {
  return std::all_of(plan.rank_workers.begin(), plan.rank_workers.end(), [&](const auto& worker) {
    auto it = free.find(worker);
    return it != free.end() && TakeRank(plan, it->second);
  });
}

/// The same plan on workers that have room: where it was if possible, else filling the emptiest
/// worker first so that neighbouring ranks share a machine.
std::optional<Plan> PlaceAgain(const Plan& last, const std::map<std::string, FreeCapacity>& free) {
  if (last.rank_workers.empty()) return std::nullopt;
  if (Fits(last, free)) return last;
  std::vector<std::pair<std::string, FreeCapacity>> workers(free.begin(), free.end());
  std::stable_sort(workers.begin(), workers.end(),
                   [](const auto& a, const auto& b) { return a.second.cores > b.second.cores; });
  Plan plan = last;
  size_t rank = 0;
  for (auto& [worker, room] : workers) {
    while (rank < plan.rank_workers.size() && TakeRank(plan, room)) {
      plan.rank_workers[rank++] = worker;
    }
  }
  if (rank < plan.rank_workers.size()) return std::nullopt;
  return plan;
}

ClusterProfile FreePart(const ClusterProfile& cluster,
                        const std::map<std::string, FreeCapacity>& free) {
  ClusterProfile part;
  for (WorkerProfile worker : cluster.workers) {
    auto it = free.find(worker.worker_id);
    if (it == free.end() || it->second.cores < 1) continue;
    worker.cores = it->second.cores;
    worker.memory_limit_bytes = it->second.memory_bytes;
    part.workers.push_back(std::move(worker));
  }
  return part;
}

/// The chosen plan, or the planner's reason against all.
Result<Plan> BestPlan(const JobSpec& spec, const ClusterProfile& cluster,
                      const PlanFunction& plan) {
  WEFT_ASSIGN_OR_RETURN(PlanReport report, plan(spec, cluster));
  for (const PlanCandidate& candidate : report.candidates) {
    if (candidate.chosen && candidate.feasible) return candidate.plan;
  }
  if (report.candidates.empty()) return ExhaustedError("no plan fits the workers");
  return ExhaustedError(report.candidates.front().reason);
}

}  // namespace

void TakeCapacity(const Plan& plan, std::map<std::string, FreeCapacity>& free) {
  for (const std::string& worker : plan.rank_workers) {
    auto it = free.find(worker);
    if (it == free.end()) continue;
    it->second.cores -= plan.threads_per_rank;
    it->second.memory_bytes -= RankBytes(plan);
    if (it->second.cores < 1) free.erase(it);
  }
}

SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan) {
  SchedulerDecisions decisions;
  std::map<std::string, FreeCapacity> free = snapshot.free;
  std::string held_back_by;
  for (const QueuedJob& job : snapshot.queue) {
    if (!held_back_by.empty()) {
      decisions.waits.push_back({job.id, Reason::kWaitingForCapacity,
                                 "waits behind job " + held_back_by + ", which was queued first"});
      continue;
    }
    if (snapshot.cluster.workers.empty()) {
      decisions.waits.push_back(
          {job.id, Reason::kWaitingForWorkers, "no worker is attached; hint: start weft-worker"});
      continue;
    }
    std::optional<Plan> again;
    if (job.last_plan != nullptr) again = PlaceAgain(*job.last_plan, free);
    ClusterProfile part = FreePart(snapshot.cluster, free);
    Result<Plan> chosen = again ? Result<Plan>(std::move(*again))
                          : part.workers.empty()
                              ? Result<Plan>(ExhaustedError("every worker is taken"))
                              : BestPlan(*job.spec, part, plan);
    if (chosen.ok() && Fits(*chosen, free)) {
      TakeCapacity(*chosen, free);
      decisions.starts.push_back({job.id, std::move(*chosen)});
      continue;
    }
    Result<Plan> on_all = BestPlan(*job.spec, snapshot.cluster, plan);
    if (on_all.ok()) {
      held_back_by = job.id;
      decisions.waits.push_back({job.id, Reason::kWaitingForCapacity,
                                 "other jobs hold the workers it needs (" +
                                     std::to_string(on_all->rank_workers.size()) + " ranks x " +
                                     std::to_string(on_all->threads_per_rank) + " cores)"});
    } else {
      decisions.waits.push_back(
          {job.id, Reason::kWaitingForWorkers,
           "the attached workers cannot run it: " + on_all.status().message()});
    }
  }
  return decisions;
}

}  // namespace weft::coordinator
