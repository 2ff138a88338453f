#pragma once

#include <cstdint>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/spec/job_spec.h"

namespace weft::planner {

/// What a rank of a pipeline has to itself.
struct StageRank {
  double pass_seconds = 0;   ///< If the whole network were its own.
  int64_t memory_bytes = 0;  ///< That it may hold.
};

/// Cuts of the network of `job` for `ranks` that are not all alike: a rank that is twice as
/// fast has twice the work, and none has more blocks than it has the memory for, if all blocks
/// recompute, and if none does; where there is room, these are one cut. Last the cut for ranks that
/// are alike (CutModel). `memory` are the inputs of a rank with the whole network, whatever it
/// recomputes, `shapes` its stages.
std::vector<std::vector<int64_t>> StageCuts(const JobSpec& job, const std::vector<StageRank>& ranks,
                                            const MemoryInputs& memory, const StageShapes& shapes,
                                            const InFlightActivations& in_flight);

}  // namespace weft::planner
