#pragma once

#include "common/model/checkpoint_interval.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/plan.h"
#include "common/spec/train_spec.h"

namespace weft::planner {

/// The costs of saves of `plan` that are expected before any has been measured: the stall is a copy
/// of a rank's parameters and optimizer state within the machine, or from its GPU, the background a
/// write of it to disk; those ranks of a machine that save share both. Failures are those of
/// `devices` GPUs, or machines without any, with no experience. What the cluster does not report
/// is 0.
SaveCosts ExpectedSaveCosts(const TrainSpec& train, const ClusterProfile& cluster, const Plan& plan,
                            int64_t devices);

}  // namespace weft::planner
