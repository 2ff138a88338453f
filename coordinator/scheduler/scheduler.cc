#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

#include "common/model/device_order.h"

namespace weft::coordinator {
namespace {

/// What the rank takes of its worker's memory: on a GPU what it has outside of that.
int64_t WorkerBytes(const Plan& plan, size_t rank) {
  const int64_t bytes = BytesOfRank(plan, static_cast<int64_t>(rank));
  if (!OnDevices(plan)) return bytes;
  const bool offloads = plan.offload_optimizer != "none" || plan.offload_activations != "none";
  return offloads ? TotalBytes(plan.prediction.memory_per_rank) - bytes : 0;
}

/// Whether the rank fits, too, on GPUs on `device`; takes its share if so.
bool TakeRank(const Plan& plan, size_t rank, int64_t device, FreeCapacity& free) {
  if (free.cores < plan.threads_per_rank) return false;
  const int64_t bytes = WorkerBytes(plan, rank);
  if (free.memory_bytes < bytes) return false;
  if (OnDevices(plan) && free.devices.erase(device) == 0) return false;
  free.memory_bytes -= bytes;
  free.cores -= plan.threads_per_rank;
  return true;
}

/// Jobs behind one whose plan is not known that are planned, too.
constexpr int kPlannedAhead = 64;

/// The plan for what is free, `part` of the cluster: the last one again, or a new one.
Result<Plan> Choose(const QueuedJob& job, const JobSpec& spec, const ClusterProfile& cluster,
                    const FreeMap& free, const ClusterProfile& part, const PlanFunction& plan) {
  if (job.out_of_memory && job.next_plan == nullptr && job.last_plan != nullptr &&
      !part.workers.empty()) {
    Result<Plan> smaller = BestPlan(WithLessMemory(spec, *job.last_plan), part, plan);
    if (smaller.ok() || HasNoAnswerYet(smaller.status())) return smaller;
  }
  if (job.next_plan != nullptr && Fits(*job.next_plan, free)) return *job.next_plan;
  if (job.replanned && job.last_plan != nullptr && !part.workers.empty()) {
    Result<Plan> better = BetterPlan(spec, *job.last_plan, job.ran_out_of_memory, part, plan);
    if (better.ok() && better->prediction.step_seconds < job.last_plan->prediction.step_seconds) {
      return better;
    }
    if (!better.ok() && HasNoAnswerYet(better.status())) return better;
  }
  if (job.last_plan != nullptr) {
    if (std::optional<Plan> again = PlaceAgain(*job.last_plan, cluster, free)) return *again;
  }
  if (part.workers.empty()) return ExhaustedError("every worker is taken");
  return BestPlan(spec, part, plan);
}

}  // namespace

std::optional<Plan> PlaceAgain(const Plan& last, const ClusterProfile& cluster,
                               const FreeMap& free) {
  if (last.rank_workers.empty()) return std::nullopt;
  if (Fits(last, free)) return last;
  struct Room {
    const WorkerProfile* worker;
    FreeCapacity free;
  };
  std::vector<Room> rooms;
  for (const WorkerProfile& worker : cluster.workers) {
    if (auto it = free.find(worker.worker_id); it != free.end()) {
      rooms.push_back({&worker, it->second});
    }
  }
  std::stable_sort(rooms.begin(), rooms.end(), [&](const Room& a, const Room& b) {
    const size_t devices_a = OnDevices(last) ? a.free.devices.size() : 0;
    const size_t devices_b = OnDevices(last) ? b.free.devices.size() : 0;
    return std::tie(devices_b, b.free.cores, a.worker->worker_id) <
           std::tie(devices_a, a.free.cores, b.worker->worker_id);
  });
  Plan plan = last;
  plan.rank_devices.clear();
  size_t rank = 0;
  for (Room& room : rooms) {
    std::vector<int64_t> devices;
    if (OnDevices(plan)) {
      const int64_t wanted = std::min(static_cast<int64_t>(plan.rank_workers.size() - rank),
                                      room.free.cores / plan.threads_per_rank);
      int64_t bytes = 0;
      for (int64_t i = 0; i < wanted; ++i) {
        bytes = std::max(bytes, BytesOfRank(plan, static_cast<int64_t>(rank) + i));
      }
      devices = NearestDevices(FreeDevices(*room.worker, room.free), wanted, bytes);
    }
    size_t next = 0;
    while (rank < plan.rank_workers.size()) {
      const int64_t device = next < devices.size() ? devices[next++] : -1;
      if (!TakeRank(plan, rank, device, room.free)) break;
      plan.rank_workers[rank++] = room.worker->worker_id;
      if (OnDevices(plan)) plan.rank_devices.push_back(device);
    }
  }
  if (rank < plan.rank_workers.size()) return std::nullopt;
  return plan;
}

bool Fits(const Plan& plan, FreeMap free) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto it = free.find(plan.rank_workers[rank]);
    if (it == free.end() || !TakeRank(plan, rank, DeviceOf(plan, rank), it->second)) return false;
  }
  return true;
}

void TakeCapacity(const Plan& plan, FreeMap& free) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto it = free.find(plan.rank_workers[rank]);
    if (it == free.end()) continue;
    it->second.cores -= plan.threads_per_rank;
    if (OnDevices(plan)) it->second.devices.erase(DeviceOf(plan, rank));
    it->second.memory_bytes -= WorkerBytes(plan, rank);
    if (it->second.cores < 1) free.erase(it);
  }
}

SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan) {
  SchedulerDecisions decisions;
  FreeMap free = snapshot.free;
  ClusterProfile part = FreePart(snapshot.cluster, free);
  std::string held_back_by;
  bool held_by_planning = false;  // only until that job's plan is known
  int planned_ahead = 0;
  const auto wait = [&](const QueuedJob& job, Reason reason, std::string message) {
    decisions.waits.push_back({job.id, reason, std::move(message)});
  };
  const auto wait_behind = [&](const QueuedJob& job) {
    wait(job, Reason::kWaitingForCapacity,
         "waits behind job " + held_back_by + ", which was queued first");
  };
  const auto hold_back = [&](const QueuedJob& job, bool planning) {
    if (!held_back_by.empty()) return;
    held_back_by = job.id;
    held_by_planning = planning;
  };
  const auto start = [&](const QueuedJob& job, Plan chosen) {
    TakeCapacity(chosen, free);
    part = FreePart(snapshot.cluster, free);
    decisions.starts.push_back({job.id, std::move(chosen)});
  };
  for (const QueuedJob& job : snapshot.queue) {
    if (snapshot.cluster.workers.empty()) {
      wait(job, Reason::kWaitingForWorkers, "no worker is attached; hint: start weft-worker");
      continue;
    }
    if (job.infeasible_reason != nullptr) {
      wait(job, Reason::kWaitingForWorkers, *job.infeasible_reason);
      continue;
    }
    if (!held_back_by.empty() && (!held_by_planning || planned_ahead >= kPlannedAhead)) {
      wait_behind(job);
      continue;
    }
    const JobSpec spec = WithDevice(*job.spec, job.last_plan, snapshot.cluster);
    Result<Plan> chosen = Choose(job, spec, snapshot.cluster, free, part, plan);
    const bool fits = chosen.ok() && Fits(*chosen, free);
    if (fits && held_back_by.empty()) {
      start(job, *std::move(chosen));
      continue;
    }
    const bool unknown = !chosen.ok() && HasNoAnswerYet(chosen.status());
    if (fits || (unknown && !job.planned_long)) {
      if (fits) {
        wait_behind(job);
      } else {
        wait(job, Reason::kPlanning, chosen.status().message());
        hold_back(job, true);
      }
      ++planned_ahead;
      continue;
    }
    Result<Plan> on_all = BestPlan(spec, snapshot.cluster, plan);
    if (!on_all.ok() && HasNoAnswerYet(on_all.status())) {
      wait(job, Reason::kPlanning, on_all.status().message());
      if (!job.planned_long) hold_back(job, true);
      ++planned_ahead;
      continue;
    }
    if (!on_all.ok()) {
      wait(job, Reason::kWaitingForWorkers,
           "the attached workers cannot run it: " + on_all.status().message());
      decisions.waits.back().infeasible = true;
      continue;
    }
    if (unknown) {
      std::optional<Plan> placed = PlaceAgain(*on_all, snapshot.cluster, free);
      if (placed && held_back_by.empty()) {
        start(job, *std::move(placed));
      } else {
        wait(job, Reason::kPlanning, chosen.status().message());
      }
      continue;
    }
    hold_back(job, false);
    wait(job, Reason::kWaitingForCapacity,
         "other jobs hold the workers it needs (" + std::to_string(on_all->rank_workers.size()) +
             " ranks x " + std::to_string(on_all->threads_per_rank) +
             (OnDevices(*on_all) ? " cores and a GPU)" : " cores)"));
  }
  return decisions;
}

}  // namespace weft::coordinator
