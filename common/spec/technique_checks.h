#pragma once

#include <vector>

#include "common/spec/compatibility.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

// What validation asks techniques. Defined where all of them are known
// (common/model/technique_cost.h).
namespace weft {

/// kInvalid where the fields of a technique do not fit each other.
Status CheckTechniques(const JobSpec& job);

/// What techniques do not combine with, in the order of their registry.
std::vector<Refusal> TechniqueRefusals();

}  // namespace weft
