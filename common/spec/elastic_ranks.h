#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft {

/// Whether the ranks of an attempt at the job by this plan come and go between outer steps, while
/// it runs: rounds by time whose number of ranks the job leaves open (resources.ranks 0), of ranks
/// on CPUs that each have the whole state, in memory. Others keep their ranks, and a lost one ends
/// the attempt.
bool RanksComeAndGo(const JobSpec& job, const Plan& plan);

}  // namespace weft
