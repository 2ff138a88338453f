#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {
namespace {

/// The same plan on workers that have room; see CapacityPool::Place.
std::optional<Plan> PlaceAgain(const Plan& last, const ClusterProfile& cluster,
                               const FreeMap& free) {
  return CapacityPool(cluster, free).Place(last);
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
