#pragma once

#include <functional>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft::planner {

/// What a job has to pass so that it is planned, with each mesh and each open choice: ValidateJob,
/// and of a phase what its rows of refusals say (CheckPhaseCompatibility). The job that is asked
/// for passes it.
using JobCheck = std::function<Status(const JobSpec& job)>;

}  // namespace weft::planner
