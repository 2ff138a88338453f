#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/planner/cluster/calibration.h"

namespace weft::planner {

/// Indices, ascending, of the `count` candidates to measure so that the others are predicted best:
/// one after the other that which takes most from the variance of all predictions together (Cohn,
/// Ghahramani and Jordan 1996), where the cluster as a whole and kernels of each shape
/// (nearby_runs.h) may be off. Measured seconds are not looked at. Fewer where fewer can run.
std::vector<size_t> RunsToMeasure(const SoftwareStack& stack,
                                  const std::vector<MeasuredRun>& candidates, size_t count);

}  // namespace weft::planner
