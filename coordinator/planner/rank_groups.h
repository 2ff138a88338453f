#pragma once

#include <cstdint>

#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// The groups of `ranks` ranks into which each `span` successive ranks of the job are divided: the
/// first group has the first of each `span / ranks` successive ranks. Returns the group with the
/// slowest links, with the worst link of any of them. A group that begins in the middle of a worker
/// may end on the next one.
RankGroup GroupOf(const StepInputs& inputs, int64_t ranks, int64_t span);

}  // namespace weft::planner
