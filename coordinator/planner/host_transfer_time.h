#pragma once

#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Seconds by which a step is longer because gradients go to the host and weights come back from
/// it, where the host makes the update, which takes `optimizer_seconds` without outer steps.
///
/// Gradients overlap with the backward pass, except for the last bucket. A rank that accumulates
/// fetches the sums of earlier passes before it adds to them; of reduced gradients it sends its
/// shard. Weights are uploaded during the update, unless they have to be gathered first, and during
/// the first forward pass after it. Units that reside on the device send nothing: the last bucket
/// of the others overlaps with the backward pass of the first blocks, while the backward pass of
/// the last blocks has nothing to send and their forward pass nothing to wait for. An outer step of
/// local_steps changes all weights at once: they are uploaded before the next pass begins.
double StateTransferSeconds(const StepInputs& inputs, const PassCost& pass,
                            double optimizer_seconds, const StepRates& rates);

/// Seconds by which the passes of a step wait for what they exchange with host and file block by
/// block: activations go to the host in the forward pass and come back in the backward pass,
/// weights come up in both. `recompute_seconds`: of the step.
double PassTransferSeconds(const StepInputs& inputs, const PassCost& pass, double recompute_seconds,
                           const StepRates& rates);

/// Seconds of an update whose state is in a file: tiles are read and written while others are
/// updated, which takes `update_seconds` by itself.
double UpdateSecondsWithFiles(const StepInputs& inputs, const PassCost& pass, double update_seconds,
                              const StepRates& rates);

}  // namespace weft::planner
