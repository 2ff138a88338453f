#pragma once

#include "common/spec/plan.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Where the time of one optimizer step of a rank goes: one formula for all hardware. `rates` says
/// how fast the hardware is, `pass` what a pass costs with no other rank on the worker.
TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& pass, const StepRates& rates);

/// Makes `mean` the weighted mean of `time`, with weight `share`, and of what it was.
void Mix(const TimeBreakdown& time, double share, TimeBreakdown& mean);

}  // namespace weft::planner
