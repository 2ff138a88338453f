#pragma once

#include <stop_token>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// Predicts what `plan`, one for `job` on `cluster` that fits, would gain from a tenth more of each
/// rate that the machines have, with all else as it is. Rates that nobody measured are those that
/// the planner takes in their place. Most first. Of no use after a request to `stop`.
std::vector<Sensitivity> SensitivityOf(const JobSpec& job, const ClusterProfile& cluster,
                                       const Plan& plan, const std::stop_token& stop = {});

}  // namespace weft::planner
