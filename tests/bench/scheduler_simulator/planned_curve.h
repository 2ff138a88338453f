#pragma once

#include "common/status.h"
#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {

/// How the planner expects one training to scale: a decoder of 350 million parameters with 512
/// sequences of 1024 tokens a step, which stays the same, on 1 to 256 H100 in machines of eight
/// with 50 GB/s between them. The errors of planner::PlanJob.
Result<ScalingCurve> PlannedCurve();

}  // namespace weft::bench
