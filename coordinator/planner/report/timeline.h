#pragma once

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// Passes of the first micro-batches that a Timeline lists, at most, over all ranks.
inline constexpr int64_t kTimelineSteps = 1200;

/// When the ranks of one pipeline of `plan` make each pass of a step: the schedule that the engine
/// runs, played through with the times that the planner predicts for its stages on the slowest kind
/// of machine in use. Without a pipeline: those of one rank.
Timeline TimelineOf(const JobSpec& job, const ClusterProfile& cluster, const Plan& plan);

}  // namespace weft::planner
