#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/trainer/control.h"

namespace weft::testing {

/// What a training reported.
struct Training {
  std::vector<double> losses;                   ///< Of each step, from rank 0; NaN: not finite.
  std::vector<trainer::ProgressMessage> ranks;  ///< The last message of each rank.
};

/// What the planner wants for `job` on a machine with cores for all of its ranks.
Result<Plan> PlanOf(const JobSpec& job);

/// Runs `job` as the planner wants it (PlanOf), whose ranks are threads here, on tokens or images
/// that are made up, until `last_step`; it goes on where a training in `run_dir` has stopped.
Result<Training> Train(const JobSpec& job, const std::string& run_dir, int64_t last_step);

}  // namespace weft::testing
