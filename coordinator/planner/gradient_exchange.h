#pragma once

#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Seconds by which a step is longer because data-parallel ranks reduce gradients and gather
/// parameters: of their collectives what does not overlap with the products of `pass`. With
/// local_steps the share of the outer step's exchange that falls to each step is in it, and so is
/// what ranks that shard gradients or parameters gather to rank it.
double GradientExchangeSeconds(const StepInputs& inputs, const PassCost& pass,
                               const StepRates& rates);

}  // namespace weft::planner
