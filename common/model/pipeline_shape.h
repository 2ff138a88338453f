#pragma once

#include <cstdint>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/pipeline/schedule.h"
#include "common/status.h"

namespace weft {

/// How the network of `job` is cut into the stages of its pipeline (resources.pipeline_parallel x
/// resources.pipeline_chunks): blocks of each, so that the most costly stage costs least, by
/// floating-point operations; embedding and classifier are layers like others. kInvalid when there
/// are fewer blocks than stages. Sizes of an imported model must have been put into job.model.
Result<std::vector<int64_t>> CutModel(const JobSpec& job);

/// Stage `stage` of those.
ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage);

/// All stages of rank `rank` of `ranks`, as if they were one.
ModelShape ShapeOfStages(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t ranks,
                         int64_t rank);

/// Bytes at their peaks of the fullest rank of a pipeline. `inputs` are those of one rank with the
/// whole network; its first `recomputed_blocks` recompute, wherever they are.
MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule);

}  // namespace weft
