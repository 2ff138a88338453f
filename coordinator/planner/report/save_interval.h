#pragma once

#include "common/model/checkpoint_interval.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/plan.h"

namespace weft::planner {

/// What saves of `plan` should cost before any has been measured: the stall is a copy of a rank's
/// parameters and optimizer state within the machine, or from its GPU, the background a write of it
/// to disk; ranks of a machine share both. Failures as of `devices` GPUs, or machines without, of
/// which nothing is known. What the cluster does not report is 0.
SaveCosts ExpectedSaveCosts(const ClusterProfile& cluster, const Plan& plan, int64_t devices);

}  // namespace weft::planner
