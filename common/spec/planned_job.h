#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"

namespace weft {

/// `job`, asking for what `plan`, a plan of it, chose; resources.device is left as it is.
JobSpec JobAsPlanned(const JobSpec& job, const Plan& plan);

/// CheckCompatibility of `job` trained by `plan`, whoever made it. The model of `job` is known, be
/// it imported.
Status CheckPlanCompatibility(const JobSpec& job, const Plan& plan);

}  // namespace weft
