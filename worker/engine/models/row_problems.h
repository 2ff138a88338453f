#pragma once

#include "worker/engine/models/gradient_problems.h"

namespace weft::engine {

/// Operations that pick and move rows (nn/rows.h), with their references in float64.
Problem GatherProblem(Sides& sides);
Problem ScatterProblem(Sides& sides);
Problem MergeProblem(Sides& sides);
Problem RepeatProblem(Sides& sides);

}  // namespace weft::engine
