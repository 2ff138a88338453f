#pragma once

#include <cstddef>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether a phase of the job chooses its size by training (phases[].search).
bool SearchesSizes(const JobSpec& job);

/// kInvalid where the search of a phase does not fit the phases. JobOfPhase is its largest choice.
Status CheckSearch(const JobSpec& job, size_t phase);

}  // namespace weft
