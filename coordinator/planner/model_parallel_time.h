#pragma once

#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// These model what model-parallel ranks send in the passes of a step. Nothing overlaps with it,
/// except with the messages of a ring attention.

/// Seconds of what tensor-parallel ranks exchange (TensorTraffic) in a pass and, in the mean over
/// the steps, in the second pass of its micro-batch.
double TensorSeconds(const StepInputs& inputs, const StepRates& rates);

/// Seconds in a pass of what context-parallel ranks send for attention, less what a ring hides
/// behind it: all keys except the first step's arrive while others are attended to.
double ContextSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates);

/// Seconds in a pass of what expert-parallel ranks exchange, where tokens are spread evenly: rows
/// go to experts and back in each layer, forward and backward, and once more where a block is
/// recomputed. Before that the ranks agree on how many.
double ExpertSeconds(const StepInputs& inputs, const StepRates& rates);

/// Seconds in a step in which tensor-parallel ranks sum their partial gradients
/// (ModelShape::partial_gradients).
double PartialSumSeconds(const StepInputs& inputs, const StepRates& rates);

/// Seconds in a step in which tensor-parallel ranks gather what they rank (RankedNumbers::scores).
double RankedPartSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates);

/// Seconds of all of these in a step.
double ModelParallelSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates);

}  // namespace weft::planner
