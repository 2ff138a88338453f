#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {

/// `count` machines "m0", "m1", ... with `gpus` GPUs each.
inline ClusterProfile Machines(int count, int gpus) {
  ClusterProfile cluster;
  for (int i = 0; i < count; ++i) {
    WorkerProfile& worker = cluster.workers.emplace_back();
    worker.worker_id = "m" + std::to_string(i);
    worker.device = "cuda";
    worker.cores = 64;
    worker.memory_limit_bytes = 1000;
    for (int index = 0; index < gpus; ++index) {
      DeviceSpec& device = worker.devices.emplace_back();
      device.index = index;
      device.memory_limit_bytes = 100;
    }
  }
  return cluster;
}

/// Ranks of a GPU and a thread each, which are nowhere yet. Steps take a second over their number.
inline Plan GpuPlan(int64_t ranks) {
  Plan plan;
  plan.device = "cuda";
  plan.mesh.data = ranks;
  plan.rank_workers.resize(static_cast<size_t>(ranks), "nowhere");
  plan.rank_devices.resize(static_cast<size_t>(ranks), 0);
  plan.prediction.step_seconds = 1.0 / static_cast<double>(ranks);
  return plan;
}

/// Ranks of a core each, which are nowhere yet. Steps take a second over their number.
inline Plan CorePlan(int64_t ranks) {
  Plan plan = GpuPlan(ranks);
  plan.device = "cpu";
  plan.rank_devices.clear();
  return plan;
}

/// A planner that wants resources.ranks GPUs (of a job on CPUs cores) or, where that is 0, the
/// largest power of two of them that there is, within min_ranks and max_ranks.
inline Result<PlanReport> PlanGpus(const JobSpec& spec, const ClusterProfile& cluster) {
  const CapacityPool pool(cluster, AllFree(cluster));
  const ResourceSpec& resources = spec.resources;
  const bool devices = resources.device != "cpu";
  int64_t ranks = resources.ranks;
  if (ranks == 0) {
    int64_t most = devices ? pool.total().gpus : pool.total().cores;
    if (resources.max_ranks > 0) most = std::min(most, resources.max_ranks);
    for (ranks = 1; ranks * 2 <= most;) ranks *= 2;
    if (ranks < resources.min_ranks) ranks = resources.min_ranks;
  }
  std::optional<Plan> plan = pool.Place(devices ? GpuPlan(ranks) : CorePlan(ranks));
  PlanReport report;
  PlanCandidate& candidate = report.candidates.emplace_back();
  candidate.chosen = candidate.feasible = plan.has_value();
  if (plan) candidate.plan = *std::move(plan);
  if (!candidate.feasible) candidate.reason = devices ? "there are too few GPUs" : "too few cores";
  return report;
}

/// A cluster of GPUs with jobs that wait and run, a day after 1970. Steps of a job on its GPUs take
/// a second over their number.
struct GpuSituation {
  static constexpr double kNow = 86400;

  explicit GpuSituation(int machines, int gpus = 8) {
    snapshot.cluster = Machines(machines, gpus);
    snapshot.free = AllFree(snapshot.cluster);
    snapshot.now = kNow;
  }

  /// A job that wants `gpus` GPUs (0: leaves it to the planner) and takes `seconds` on them, or on
  /// one.
  QueuedJob& Wait(const std::string& id, int64_t gpus, double seconds, double age = 0) {
    JobSpec& spec = *specs.emplace_back(std::make_unique<JobSpec>());
    spec.resources.device = "cuda";
    spec.resources.ranks = gpus;
    QueuedJob& job = snapshot.queue.emplace_back();
    job.id = id;
    job.spec = &spec;
    job.submitted_at = kNow - age;
    const int64_t count = std::max<int64_t>(gpus, 1);
    job.steps_left = static_cast<int64_t>(seconds * static_cast<double>(count));
    job.size = JobSize{{count, 0}, 1.0 / static_cast<double>(count)};
    return job;
  }

  /// A job that runs on `gpus` GPUs for `seconds` more, and may be stopped.
  ActiveJob& Run(const std::string& id, int64_t gpus, double seconds, double age = 10000) {
    JobSpec& spec = *specs.emplace_back(std::make_unique<JobSpec>());
    spec.resources.device = "cuda";
    spec.resources.ranks = gpus;
    const CapacityPool pool(snapshot.cluster, snapshot.free);
    Plan& plan = *plans.emplace_back(std::make_unique<Plan>(*pool.Place(GpuPlan(gpus))));
    TakeCapacity(plan, snapshot.free);
    ActiveJob& job = snapshot.active.emplace_back();
    job.id = id;
    job.submitted_at = kNow - age;
    job.job.spec = &spec;
    job.job.plan = &plan;
    job.job.attempt_seconds = age;
    job.job.steps_left = static_cast<int64_t>(seconds * static_cast<double>(gpus));
    job.job.step_seconds = plan.prediction.step_seconds;
    job.job.saved = true;
    return job;
  }

  SchedulerDecisions Decide() const { return Schedule(snapshot, PlanGpus); }

  SchedulerSnapshot snapshot;
  std::vector<std::unique_ptr<JobSpec>> specs;
  std::vector<std::unique_ptr<Plan>> plans;
};

/// Machines without GPUs, with jobs that wait and run as in GpuSituation. Steps of a job take a
/// second over its cores.
struct CoreSituation {
  explicit CoreSituation(int machines, int64_t cores) {
    snapshot.cluster = Machines(machines, 0);
    for (WorkerProfile& worker : snapshot.cluster.workers) {
      worker.device = "cpu";
      worker.cores = cores;
    }
    snapshot.free = AllFree(snapshot.cluster);
    snapshot.now = GpuSituation::kNow;
  }
  JobSpec& Spec() {
    JobSpec& spec = *specs.emplace_back(std::make_unique<JobSpec>());
    spec.resources.device = "cpu";
    return spec;
  }
  /// A job of an open size that takes `seconds` on one core.
  JobSpec& Wait(const std::string& id, int64_t seconds) {
    JobSpec& spec = Spec();
    QueuedJob& job = snapshot.queue.emplace_back();
    job.id = id;
    job.spec = &spec;
    job.submitted_at = snapshot.now;
    job.steps_left = seconds;
    job.size = JobSize{{0, 1}, 1};
    return spec;
  }
  /// One that runs on `cores` cores for `seconds` more, and may be stopped.
  JobSpec& Run(const std::string& id, int64_t cores, int64_t seconds) {
    JobSpec& spec = Spec();
    const CapacityPool pool(snapshot.cluster, snapshot.free);
    Plan& plan = *plans.emplace_back(std::make_unique<Plan>(*pool.Place(CorePlan(cores))));
    TakeCapacity(plan, snapshot.free);
    ActiveJob& job = snapshot.active.emplace_back();
    job.id = id;
    job.submitted_at = snapshot.now - 10000;
    job.job.spec = &spec;
    job.job.plan = &plan;
    job.job.attempt_seconds = 10000;
    job.job.steps_left = seconds * cores;
    job.job.step_seconds = plan.prediction.step_seconds;
    job.job.saved = true;
    return spec;
  }
  SchedulerDecisions Decide() const { return Schedule(snapshot, PlanGpus); }

  SchedulerSnapshot snapshot;
  std::vector<std::unique_ptr<JobSpec>> specs;
  std::vector<std::unique_ptr<Plan>> plans;
};

/// The jobs that start, in the order of the decisions; likewise those that are displaced.
inline std::vector<std::string> Starts(const SchedulerDecisions& decisions) {
  std::vector<std::string> ids;
  for (const StartDecision& start : decisions.starts) ids.push_back(start.job_id);
  return ids;
}

inline std::vector<std::string> Victims(const SchedulerDecisions& decisions) {
  std::vector<std::string> ids;
  for (const PreemptDecision& preemption : decisions.preemptions) ids.push_back(preemption.job_id);
  return ids;
}

/// A queue to which `quota` GPUs belong.
inline QueueSpec Queue(const std::string& name, int64_t quota = 0) {
  QueueSpec queue;
  queue.name = name;
  queue.quota_gpus = quota;
  return queue;
}

}  // namespace weft::coordinator
