#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/scheduler/best_plan.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// When a running job is worth a restart on more machines; docs/decisions/0005 has the reasons.
struct GrowthRules {
  /// An attempt runs, and a new worker stays, at least so long; 0: no job grows.
  double after_seconds = 120;
  /// Times as fast: less than this may be an error of the prediction, or of the measurement.
  double least_gain = 1.2;
  /// Time saved until the end of the job over the time that the restart costs.
  double least_payback = 2;
  /// `after_seconds` doubles so often at most.
  int64_t most_doublings = 6;
  /// Time of a start where none of the job has been seen.
  double assumed_start_seconds = 60;
};

/// What the attempts of a job that have ended teach.
struct GrowthHistory {
  int64_t undone = 0;              ///< Attempts that failed after the one before was replanned.
  int64_t most_compute = 0;        ///< ComputeOf the largest.
  bool ran_out_of_memory = false;  ///< One of them.
  bool replanned = false;          ///< The last of them.

  /// Takes the next one that has ended.
  void Add(const AttemptRecord& attempt);
};

/// A job in training.
struct RunningJob {
  const JobSpec* spec = nullptr;
  const Plan* plan = nullptr;
  GrowthHistory history;
  double attempt_seconds = 0;  ///< Since its present attempt was dispatched.
  int64_t steps_left = 0;
  double step_seconds = 0;              ///< Measured mean; 0: not yet.
  double median_step_seconds = 0;       ///< The same of single steps.
  std::optional<double> start_seconds;  ///< The longest from dispatch to the first step.
  bool saved = false;                   ///< It has a verified checkpoint.
  bool went_back = false;               ///< It grew, and FindWayBack found it slower.
};

/// A better plan, and how much better in words: "2 to 4 ranks: 1.8 times as fast by the plan".
struct BetterWay {
  Plan plan;
  std::string why;
};

/// How a job ran before it grew.
struct BeforeGrowth {
  Plan plan;
  double median_step_seconds = 0;  ///< Measured; 0: not known.
};

/// What a plan computes with: GPUs, or cores.
int64_t ComputeOf(const Plan& plan);

/// Whether the job may grow at all now, before anything is planned.
bool MayGrow(const RunningJob& job, const GrowthRules& rules);

/// The plan for which the job should be stopped at a checkpoint, if there is one. `free`: what no
/// other job holds or waits for, on workers of `cluster` that have stayed. Pure but for `plan`.
std::optional<BetterWay> FindGrowth(const RunningJob& job, const ClusterProfile& cluster,
                                    const FreeMap& free, const GrowthRules& rules,
                                    const PlanFunction& plan);

/// The plan before the growth, when steps take so much longer since that the job should have it
/// back: the planner does not know how slow the links between machines are.
std::optional<BetterWay> FindWayBack(const RunningJob& job, const BeforeGrowth& before,
                                     const GrowthRules& rules);

}  // namespace weft::coordinator
