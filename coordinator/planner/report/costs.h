#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/plan.h"
#include "common/spec/plan_query.h"

namespace weft::planner {

/// What a plan draws while it runs. 0: not known of all of its machines.
struct RunningCost {
  double price_per_hour = 0;
  double watts = 0;
  std::string unpriced;   ///< The first of its machines without a price.
  std::string unmetered;  ///< The first without a power.
};

/// Sums over the machines of `plan`: of each what its first entry in `costs` says of the machine
/// and, for each GPU in use, of the GPU.
RunningCost CostOf(const Plan& plan, const ClusterProfile& cluster, const ClusterCosts& costs);

}  // namespace weft::planner
