#pragma once

#include <cstdint>
#include <vector>

#include "common/model/pipeline_shape.h"
#include "common/pipeline/schedule.h"
#include "common/pipeline/simulate.h"
#include "coordinator/planner/time_model.h"

namespace weft::planner {

/// What beside StepInputs the step of a pipeline depends on.
struct PipelineTimeInputs {
  const std::vector<int64_t>& cut;  ///< Blocks of each stage.
  const PipelineSchedule& schedule;
  int64_t micro_batch = 1;
  int64_t sequence_length = 1;
  const Fp8Spec& fp8;
  double dropout = 0;
  bool within_worker = false;  ///< Neighbours in the pipeline are on one machine.
};

/// The step of a pipeline, and when each of its passes runs.
struct PipelineForecast {
  TimeBreakdown time;
  PipelineTimeline timeline;  ///< In seconds; exchange of gradients and update come after it.
};

/// PredictStep of a pipeline (common/pipeline/simulate.h with the times of each stage): the parts
/// of the rank that computes most and, as exposed communication, what the steps of the schedule
/// take beyond them. `inputs` are those of one rank with the whole network.
PipelineForecast PredictPipeline(const StepInputs& inputs, const PipelineTimeInputs& pipeline,
                                 const RateModel& rates);

inline TimeBreakdown PredictPipelineStep(const StepInputs& inputs,
                                         const PipelineTimeInputs& pipeline,
                                         const RateModel& rates) {
  return PredictPipeline(inputs, pipeline, rates).time;
}

}  // namespace weft::planner
