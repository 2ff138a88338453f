#include "coordinator/scheduler/trials.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <tuple>

#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {
namespace {

/// Medians of twenty steps are as far off.
constexpr double kLeastGain = 1.03;
/// A trial takes this share of what is left of the job at most.
constexpr double kMostOfTheRest = 0.1;

size_t MachinesOf(const Plan& plan) {
  return std::set<std::string>(plan.rank_workers.begin(), plan.rank_workers.end()).size();
}

auto ParallelismOf(const Plan& plan) {
  const Mesh& mesh = plan.mesh;
  return std::tuple(plan.device, plan.rank_workers.size(), MachinesOf(plan), plan.threads_per_rank,
                    plan.micro_batch, mesh.data, mesh.tensor, mesh.pipeline, mesh.context,
                    mesh.expert);
}

std::string Words(const Plan& plan) {
  const auto count = [](size_t number, const char* what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  return count(plan.rank_workers.size(), "rank") + " x " +
         count(static_cast<size_t>(plan.threads_per_rank), "thread") + ", micro-batch " +
         std::to_string(plan.micro_batch);
}

bool NeedsMoreMemory(const Plan& plan, const Plan& than) {
  return TotalBytes(plan.prediction.memory_per_rank) > TotalBytes(than.prediction.memory_per_rank);
}

/// The planner's next plan that is not among those tried; kNotFound: there is none.
Result<Plan> NextPlan(const RunningJob& job, const std::vector<TriedPlan>& tried,
                      const ClusterProfile& cluster, const FreeMap& free,
                      const PlanFunction& plan) {
  const JobSpec spec = WithDevice(*job.spec, job.plan, cluster);
  const Result<PlanReport> report = plan(spec, FreePart(cluster, free));
  if (!report.ok() && HasNoAnswerYet(report.status())) return report.status();
  const Status none = NotFoundError("every plan that fits was tried");
  if (!report.ok()) return none;
  for (const PlanCandidate& candidate : report->candidates) {
    if (!candidate.feasible || !Fits(candidate.plan, free)) continue;
    if (job.history.ran_out_of_memory && NeedsMoreMemory(candidate.plan, *job.plan)) continue;
    const bool known = std::any_of(tried.begin(), tried.end(), [&](const TriedPlan& other) {
      return SameParallelism(other.plan, candidate.plan);
    });
    if (!known) return candidate.plan;
  }
  return none;
}

}  // namespace

bool SameParallelism(const Plan& a, const Plan& b) {
  return ParallelismOf(a) == ParallelismOf(b);
}

void AddTried(const AttemptRecord& attempt, double median_step_seconds,
              std::vector<TriedPlan>& tried) {
  const bool by_its_plan = attempt.reason == Reason::kOutOfMemory ||
                           attempt.reason == Reason::kRankDied || attempt.reason == Reason::kHung;
  if (median_step_seconds <= 0 && !by_its_plan) return;
  const auto same = std::find_if(tried.begin(), tried.end(), [&](const TriedPlan& other) {
    return SameParallelism(other.plan, attempt.plan);
  });
  if (same == tried.end()) {
    tried.push_back({attempt.plan, median_step_seconds});
  } else if (median_step_seconds > 0) {
    *same = {attempt.plan, median_step_seconds};
  }
}

const TriedPlan* FastestOf(const std::vector<TriedPlan>& tried) {
  const TriedPlan* fastest = nullptr;
  for (const TriedPlan& one : tried) {
    if (one.median_step_seconds <= 0) continue;
    if (fastest == nullptr || one.median_step_seconds < fastest->median_step_seconds) {
      fastest = &one;
    }
  }
  return fastest;
}

const Plan* AfterFailedTrial(const JobSpec& spec, const AttemptRecord& failed,
                             const std::vector<TriedPlan>& tried) {
  if (spec.resources.try_plans <= 1) return nullptr;
  const bool never_measured = std::any_of(tried.begin(), tried.end(), [&](const TriedPlan& one) {
    return one.median_step_seconds <= 0 && SameParallelism(one.plan, failed.plan);
  });
  const TriedPlan* fastest = FastestOf(tried);
  return never_measured && fastest != nullptr ? &fastest->plan : nullptr;
}

std::optional<PlanChange> FindTrial(const RunningJob& job, const std::vector<TriedPlan>& tried,
                                    const ClusterProfile& cluster, const FreeMap& free,
                                    const RestartRules& rules, const PlanFunction& plan) {
  const int64_t wanted = job.spec->resources.try_plans;
  if (wanted <= 1 || job.median_step_seconds <= 0 || job.step_seconds <= 0) return std::nullopt;
  std::vector<TriedPlan> all = tried;
  std::erase_if(all, [&](const TriedPlan& one) { return SameParallelism(one.plan, *job.plan); });
  all.push_back({*job.plan, job.median_step_seconds});
  const double left = static_cast<double>(job.steps_left) * job.step_seconds;
  if (std::ssize(all) < wanted && RestartSeconds(job, rules) <= kMostOfTheRest * left) {
    Result<Plan> next = NextPlan(job, all, cluster, free, plan);
    if (!next.ok() && HasNoAnswerYet(next.status())) return std::nullopt;
    if (next.ok()) {
      std::string why = "plan " + std::to_string(all.size() + 1) + " of " + std::to_string(wanted) +
                        " to try: " + Words(*next);
      return PlanChange{*std::move(next), std::move(why)};
    }
  }
  const TriedPlan& fastest = *FastestOf(all);
  const double gain = job.median_step_seconds / fastest.median_step_seconds;
  if (gain < kLeastGain || !Fits(fastest.plan, free) || !PaysForRestart(job, gain, rules)) {
    return std::nullopt;
  }
  char factor[32];
  std::snprintf(factor, sizeof(factor), "%.2f", gain);
  return PlanChange{fastest.plan,
                    Words(fastest.plan) + ": " + factor + " times as fast by what was measured"};
}

}  // namespace weft::coordinator
