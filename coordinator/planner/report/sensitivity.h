#pragma once

#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// What `plan`, one for `job` on `cluster` that fits, would gain from a tenth more of each rate
/// that the machines have: its step is predicted again, with all else as it is. Rates that nobody
/// measured are those that the planner takes in their place. Most first.
std::vector<Sensitivity> SensitivityOf(const JobSpec& job, const ClusterProfile& cluster,
                                       const Plan& plan);

}  // namespace weft::planner
