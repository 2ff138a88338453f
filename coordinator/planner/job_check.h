#pragma once

#include <cstddef>
#include <functional>

#include "common/spec/job_spec.h"
#include "common/spec/phases.h"
#include "common/status.h"

namespace weft::planner {

/// What a job has to pass so that it is planned, with each mesh and each open choice. The job that
/// is asked for passes it; of its choices maybe none does.
using JobCheck = std::function<Status(const JobSpec& job)>;

/// The check of the PlannedJobOfPhase of phase `phase` of `job`, which outlives it: ValidateJob,
/// and what the rows of refusals say of the phase.
inline JobCheck CheckOfPhase(const JobSpec& job, size_t phase) {
  if (job.phases.empty()) return ValidateJob;
  return [&job, phase](const JobSpec& planned) -> Status {
    WEFT_RETURN_IF_ERROR(ValidateJob(planned));
    return CheckPhaseCompatibility(job, phase, planned);
  };
}

}  // namespace weft::planner
