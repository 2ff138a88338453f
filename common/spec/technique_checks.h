#pragma once

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// kInvalid where the fields of a technique do not fit each other. Defined where all techniques are
/// known (common/model/technique_cost.h).
Status CheckTechniques(const JobSpec& job);

}  // namespace weft
