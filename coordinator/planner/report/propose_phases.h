#pragma once

#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft::planner {

/// A V-cycle that takes the FLOPs of `job`, which has no phases: model, a model of half its layers,
/// width and heads, and model again, in the proportion of 1 : 10 : 10 steps, the small one with
/// four times the learning rate, as the authors of the method have it for GPT-2 (Zou et al. 2024,
/// arXiv 2404.07999). The first phase is warm-up alone. kInvalid where sizes cannot be halved,
/// train.steps leaves no step for a phase, or the job does not go with phases. Pure.
Result<std::vector<PhaseSpec>> ProposeVCycle(const JobSpec& job);

/// The lines of a job that ask for these phases, as YAML. Ends with a newline.
std::string PhaseLines(const std::vector<PhaseSpec>& phases);

}  // namespace weft::planner
