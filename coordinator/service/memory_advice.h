#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {

/// For people whose job ran out of memory: what the plan of that attempt expected a rank to use, by
/// component, and what a rank may use; the best plan on `cluster` that needs clearly less
/// (WithLessMemory), which the next attempt takes, or why there is none; and what else of that plan
/// would have to change, one thing at a time: blocks recomputed, micro-batch, precision, ranks.
std::string MemoryAdvice(const JobSpec& spec, const Plan& plan, const ClusterProfile& cluster,
                         const PlanFunction& find);

}  // namespace weft::coordinator
