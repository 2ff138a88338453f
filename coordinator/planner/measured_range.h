#pragma once

#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/planner/cluster/calibrated_range.h"
#include "coordinator/planner/search.h"

namespace weft::planner {

/// Lists where the predicted time of `costed`, one that fits, extrapolates from the measurements of
/// the workers that it runs on, each quantity once: sizes of its products, at least a hundredth of
/// their work, that are more than twice or less than half of any measured; threads of a rank;
/// precision; links between GPUs and between machines.
std::vector<Extrapolation> OutsideMeasured(const JobSpec& job, const SearchResult& result,
                                           const CostedPlan& costed);

}  // namespace weft::planner
