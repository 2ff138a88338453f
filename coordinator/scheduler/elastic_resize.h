#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/scheduler/best_plan.h"
#include "coordinator/scheduler/restart.h"

namespace weft::coordinator {

/// When a running job is worth a restart on more machines, or on fewer for the sake of others;
/// docs/decisions/0005 has the reasons.
struct ScaleUpRules {
  /// An attempt runs, and a new worker stays, at least so long; 0: no job grows.
  double after_seconds = 120;
  /// Times as fast: less than this may be an error of the prediction, or of the measurement.
  double least_gain = 1.2;
  /// `after_seconds` doubles so often at most.
  int64_t most_doublings = 6;
  RestartRules restart;
};

/// How a job ran before it scaled up.
struct BeforeScaleUp {
  Plan plan;
  double median_step_seconds = 0;  ///< Measured; 0: not known.
};

/// Whether the job may grow at all now, before anything is planned.
bool MayScaleUp(const RunningJob& job, const ScaleUpRules& rules);

/// The plan for which the job should be stopped at a checkpoint, if there is one. `free`: what no
/// other job holds or waits for, on workers of `cluster` that have stayed. Pure except `plan`.
std::optional<PlanChange> FindScaleUp(const RunningJob& job, const ClusterProfile& cluster,
                                      const FreeMap& free, const ScaleUpRules& rules,
                                      const PlanFunction& plan);

/// The plan before it scaled up, when steps take so much longer since that the job should have it
/// back: the planner does not know how slow the links between machines are.
std::optional<PlanChange> FindScaleBack(const RunningJob& job, const BeforeScaleUp& before,
                                        const ScaleUpRules& rules);

/// What the ranks of `plan` hold, as if that were all that is free.
FreeMap HeldBy(const Plan& plan, const ClusterProfile& cluster);

/// The plan with at most `most` GPUs, or cores, of those that the job holds already, so that the
/// rest is free for others. Where that is too small for it, with twice as many, and so on. nullopt:
/// there is none, or the job may not have fewer. Pure except `plan`.
std::optional<PlanChange> FindShrink(const RunningJob& job, int64_t most,
                                     const ClusterProfile& cluster, const PlanFunction& plan);

}  // namespace weft::coordinator
