#pragma once

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan_query.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// What a candidate for `job` on `cluster` needs, what limits it, and what it costs.
PlanDetail DetailOf(const JobSpec& job, const ClusterProfile& cluster, const ClusterCosts& costs,
                    const PlanCandidate& candidate);

}  // namespace weft::planner
