#pragma once

#include "coordinator/scheduler/scheduler.h"
#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {

struct ProductionOptions {
  coordinator::SchedulerRules rules;
  bool elastic = false;  ///< Jobs may run on the sizes of ElasticSizes; else on their own number.
  int64_t gpus_per_machine = 8;
};

/// Runs the scheduler of the coordinator over the trace on a virtual clock: machines with GPUs, a
/// planner that follows the curve, and predicted times that are as wrong as the trace says until
/// the job has ended.
Outcome SimulateProduction(const Trace& trace, int64_t gpus, const ScalingCurve& curve,
                           const ProductionOptions& options);

}  // namespace weft::bench
