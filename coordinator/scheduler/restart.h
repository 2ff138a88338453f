#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// When stopping a running job, to go on by another plan, is worth it.
struct RestartRules {
  /// Time saved until the end of the job over the time that the restart costs.
  double least_payback = 2;
  /// Time of a start where none of the job has been seen.
  double assumed_start_seconds = 60;
};

/// What the attempts of a job that have ended teach.
struct AttemptHistory {
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
  AttemptHistory history;
  double attempt_seconds = 0;  ///< Since its present attempt was dispatched.
  int64_t steps_left = 0;
  double step_seconds = 0;              ///< Measured mean; 0: not yet.
  double median_step_seconds = 0;       ///< The same of single steps.
  std::optional<double> start_seconds;  ///< The longest from dispatch to the first step.
  bool saved = false;                   ///< It has a verified checkpoint.
  bool went_back = false;               ///< It grew, and FindScaleBack found it slower.
  /// Its ranks come and go without a restart: workers on which none is to join; nullopt: they stay.
  std::optional<std::set<std::string>> no_peers_on = {};
  int64_t joining = 0;  ///< Ranks that start to join it, which are not in its plan yet.
};

/// A better plan, and how much better in words: "2 to 4 ranks: 1.8 times as fast by the plan".
struct PlanChange {
  Plan plan;
  std::string why;
};

/// What a plan computes with: GPUs, or cores.
int64_t ComputeOf(const Plan& plan);

/// Ranks save and stop in about the time in which they load and start.
double RestartSeconds(const RunningJob& job, const RestartRules& rules);

/// Whether the rest of the job saves enough when it is `gain` times as fast. What a stop waits for
/// is training too, but runs by the old plan.
bool PaysForRestart(const RunningJob& job, double gain, const RestartRules& rules);

}  // namespace weft::coordinator
