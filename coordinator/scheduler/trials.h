#pragma once

#include <optional>
#include <vector>

#include "coordinator/scheduler/best_plan.h"
#include "coordinator/scheduler/restart.h"

namespace weft::coordinator {

/// A plan by which a job has run.
struct TriedPlan {
  Plan plan;
  double median_step_seconds = 0;  ///< Measured; 0: it failed before.
};

/// Whether both share the model alike among as many ranks on as many machines, with the same
/// micro-batch and threads.
bool SameParallelism(const Plan& a, const Plan& b);

/// Takes the next attempt that has ended, with the median of its steps, 0 where it made too few.
/// One that was cut short by something that is none of its plan's says nothing.
void AddTried(const AttemptRecord& attempt, double median_step_seconds,
              std::vector<TriedPlan>& tried);

/// The fastest one measured; null: there is none.
const TriedPlan* FastestOf(const std::vector<TriedPlan>& tried);

/// The plan to go on by after an attempt that failed by its plan, while plans were tried; null: as
/// after any failure.
const Plan* AfterFailedTrial(const JobSpec& spec, const AttemptRecord& failed,
                             const std::vector<TriedPlan>& tried);

/// Finds the plan for which a job with resources.try_plans should be stopped, if there is one.
/// While fewer have been tried that is the planner's next one that has room in `free`, what no
/// other job holds or waits for; then the fastest one measured, when the rest of the job pays for
/// the restart. Not before the present plan was measured, and nothing new once all that is left
/// takes less than ten restarts. Pure except `plan`.
std::optional<PlanChange> FindTrial(const RunningJob& job, const std::vector<TriedPlan>& tried,
                                    const ClusterProfile& cluster, const FreeMap& free,
                                    const RestartRules& rules, const PlanFunction& plan);

}  // namespace weft::coordinator
