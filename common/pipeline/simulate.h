#pragma once

#include <cstdint>
#include <vector>

#include "common/pipeline/schedule.h"

namespace weft {

/// One stage and one micro-batch. Any unit of time and memory, the same everywhere.
struct StageCost {
  double forward = 0;
  double backward_input = 0;  ///< The whole backward pass is the sum of both.
  double backward_weight = 0;
  double activations = 0;  ///< Kept from the forward step to the last backward step.

  double backward() const { return backward_input + backward_weight; }
};

struct PipelineCosts {
  std::vector<StageCost> stages;
  double hop = 0;                   ///< From the end of a step until another rank has its result.
  int64_t first_trained_stage = 0;  ///< Backward steps of those before it wait for nothing.
};

/// When each step runs if each rank does its steps in order as soon as it can.
struct PipelineTimeline {
  struct Rank {
    std::vector<double> starts;  ///< By step of the schedule.
    std::vector<double> ends;
    double busy = 0;
    double peak_activations = 0;
  };
  std::vector<Rank> ranks;
  double end = 0;  ///< Of the last step.

  /// The share of all ranks' time until the end in which they wait.
  double BubbleFraction() const;
};

/// kInvalid for a schedule that CheckSchedule refuses or costs of another number of stages.
Result<PipelineTimeline> SimulatePipeline(const PipelineSchedule& schedule,
                                          const PipelineCosts& costs);

/// PipelineTimeline::end of a schedule that passes CheckSchedule, with costs of as many stages: for
/// those who ask for many.
double EndOfPipeline(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace weft
