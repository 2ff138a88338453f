#pragma once

#include <functional>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan_query.h"
#include "common/status.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// Plans one job, as PlanJob does.
using PlanOn = std::function<Result<PlanReport>(const ClusterProfile&)>;

/// The best plan for each number of devices: 1, 2, 4, ... of the largest machines, up to all, and
/// halfway between two of these where that is whole machines; of each kind of machine by itself,
/// and where there are several of all kinds together. Where nothing fits, the point says why.
/// Errors other than kExhausted are returned.
Result<std::vector<FrontierPoint>> FrontierOf(const JobSpec& job, const ClusterProfile& cluster,
                                              const ClusterCosts& costs, const PlanOn& plan);

/// What point `index` of FrontierOf may use.
ClusterProfile ClusterOfPoint(const JobSpec& job, const ClusterProfile& cluster,
                              const FrontierPoint& point);

/// The least number of devices of FirstDevices on which `fits` is true; 0: on none. What fits on
/// some fits on more.
int64_t FewestDevices(const ClusterProfile& cluster, bool on_devices,
                      const std::function<bool(const ClusterProfile&)>& fits);

}  // namespace weft::planner
