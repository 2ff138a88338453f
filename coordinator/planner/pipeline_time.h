#pragma once

#include <cstdint>
#include <vector>

#include "common/model/pipeline_shape.h"
#include "common/pipeline/schedule.h"
#include "common/pipeline/simulate.h"
#include "coordinator/planner/time_model.h"

namespace weft::planner {

/// What beside StepInputs the stages of a pipeline depend on.
struct PipelineStageInputs {
  const std::vector<int64_t>& cut;  ///< Blocks of each stage.
  int64_t micro_batch = 1;
  int64_t sequence_length = 1;
  const Fp8Spec& fp8;
  double dropout = 0;
};

/// A stage's part of a step of one micro-batch, and its passes. What is of a step, whatever passes
/// it has, is in neither.
struct StageForecast {
  TimeBreakdown time;
  StageCost cost;
};

/// Of each stage. `inputs` are those of one rank with the whole network.
std::vector<StageForecast> PredictStages(const StepInputs& inputs,
                                         const PipelineStageInputs& pipeline,
                                         const RateModel& rates);

/// No schedule of `passes` micro-batches on `ranks` ranks takes less: a rank does nothing before
/// the first micro-batch has come through the stages before its own, then has its passes, and after
/// the last one, if it is a whole backward pass (not `split_backward`), those stages have theirs.
double LeastPipelineSeconds(const std::vector<StageForecast>& stages, int64_t ranks, int64_t passes,
                            bool split_backward);

/// What else the step depends on.
struct PipelineTimeInputs {
  PipelineStageInputs stages;
  const PipelineSchedule& schedule;
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
