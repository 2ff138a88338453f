#pragma once

#include "common/spec/plan.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Where the time of one optimizer step of a rank goes: one formula for all hardware, of which
/// `rates` tells how fast it is. `pass` costs what it does with no other rank on the worker.
TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& pass, const StepRates& rates);

}  // namespace weft::planner
