#include "coordinator/scheduler/elastic_resize.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {
namespace {

/// What plans on the same kind as `plan` could compute with.
int64_t OfferedCompute(const Plan& plan, const ClusterProfile& cluster) {
  int64_t sum = 0;
  for (const WorkerProfile& worker : cluster.workers) {
    sum += OnDevices(plan) ? std::ssize(worker.devices) : worker.cores;
  }
  return sum;
}

std::string Words(const Plan& from, const Plan& to, double gain, const char* by) {
  const size_t ranks = to.rank_workers.size();
  const bool more_ranks = ranks != from.rank_workers.size();
  char factor[32];
  std::snprintf(factor, sizeof(factor), "%.1f", gain);
  return (more_ranks
              ? std::to_string(from.rank_workers.size()) + " to " + std::to_string(ranks) + " ranks"
              : std::to_string(from.threads_per_rank) + " to " +
                    std::to_string(to.threads_per_rank) + " threads a rank") +
         ": " + factor + " times as fast by " + by;
}

}  // namespace

bool MayScaleUp(const RunningJob& job, const ScaleUpRules& rules) {
  if (job.no_peers_on) return false;  // ranks join it as it runs
  if (rules.after_seconds <= 0 || job.went_back || !job.saved || job.step_seconds <= 0)
    return false;
  const bool shrunk = ComputeOf(*job.plan) < job.history.most_compute;
  if (job.spec->resources.ranks > 0 && !shrunk) return false;
  const auto doublings = static_cast<int>(std::min(job.history.undone, rules.most_doublings));
  if (job.attempt_seconds < std::ldexp(rules.after_seconds, doublings)) return false;
  // Not even a plan that takes no time at all would pay for the restart.
  return PaysForRestart(job, std::numeric_limits<double>::infinity(), rules.restart);
}

std::optional<PlanChange> FindScaleUp(const RunningJob& job, const ClusterProfile& cluster,
                                      const FreeMap& free, const ScaleUpRules& rules,
                                      const PlanFunction& plan) {
  if (!MayScaleUp(job, rules)) return std::nullopt;
  const Plan& present = *job.plan;
  const ClusterProfile part = FreePart(cluster, free);
  if (OfferedCompute(present, part) <= ComputeOf(present)) return std::nullopt;
  const JobSpec spec = WithDevice(*job.spec, &present, cluster);
  Result<Plan> better = BetterPlan(spec, present, job.history.ran_out_of_memory, part, plan);
  if (!better.ok() || ComputeOf(*better) <= ComputeOf(present)) return std::nullopt;
  const double before = present.prediction.step_seconds, after = better->prediction.step_seconds;
  if (before <= 0 || after <= 0 || before < rules.least_gain * after) return std::nullopt;
  if (!PaysForRestart(job, before / after, rules.restart)) return std::nullopt;
  std::string why = Words(present, *better, before / after, "the plan");
  return PlanChange{*std::move(better), std::move(why)};
}

FreeMap HeldBy(const Plan& plan, const ClusterProfile& cluster) {
  FreeMap held;
  for (const WorkerProfile& worker : cluster.workers) {
    for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
      if (plan.rank_workers[rank] != worker.worker_id) continue;
      FreeCapacity& free = held[worker.worker_id];
      free.cores += plan.threads_per_rank;
      free.memory_bytes = worker.memory_limit_bytes;
      if (OnDevices(plan)) free.devices.insert(DeviceOf(plan, rank));
    }
  }
  return held;
}

std::optional<PlanChange> FindShrink(const RunningJob& job, int64_t most,
                                     const ClusterProfile& cluster, const PlanFunction& plan) {
  const Plan& present = *job.plan;
  const ResourceSpec& resources = job.spec->resources;
  if (!job.saved || resources.ranks > 0) return std::nullopt;
  const bool devices = OnDevices(present);
  const int64_t of_a_rank = devices ? 1 : CoresOfARank(resources);
  if (most < of_a_rank * std::max<int64_t>(resources.min_ranks, 1)) return std::nullopt;
  if (most >= ComputeOf(present)) return std::nullopt;
  const FreeMap held = HeldBy(present, cluster);
  const auto within = [&](int64_t bound) {
    JobSpec spec = WithDevice(*job.spec, &present, cluster);
    if (devices) spec.resources.max_ranks = bound;
    const ClusterProfile part = FreePart(cluster, devices ? held : WithCores(held, bound));
    return BetterPlan(spec, present, job.history.ran_out_of_memory, part, plan);
  };
  Result<Plan> fewer = within(most);
  while (!fewer.ok() && !HasNoAnswerYet(fewer.status()) && 2 * most < ComputeOf(present)) {
    most *= 2;
    fewer = within(most);
  }
  if (!fewer.ok() || ComputeOf(*fewer) >= ComputeOf(present)) return std::nullopt;
  const double before = present.prediction.step_seconds, after = fewer->prediction.step_seconds;
  if (before <= 0 || after <= 0) return std::nullopt;
  std::string why = Words(present, *fewer, before / after, "the plan");
  return PlanChange{*std::move(fewer), std::move(why)};
}

std::optional<PlanChange> FindScaleBack(const RunningJob& job, const BeforeScaleUp& before,
                                        const ScaleUpRules& rules) {
  if (!job.saved || before.median_step_seconds <= 0) return std::nullopt;
  if (ComputeOf(before.plan) >= ComputeOf(*job.plan)) return std::nullopt;
  const double gain = job.median_step_seconds / before.median_step_seconds;
  if (gain < rules.least_gain || !PaysForRestart(job, gain, rules.restart)) return std::nullopt;
  return PlanChange{before.plan, Words(*job.plan, before.plan, gain, "what was measured")};
}

}  // namespace weft::coordinator
