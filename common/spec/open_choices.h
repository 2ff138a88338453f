#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"

namespace weft {

/// Whether the job leaves a value to the planner with the word auto, that a plan has to say:
/// train.precision, or what is or waits outside the device (resources.offload_optimizer,
/// offload_parameters, offload_activations).
bool LeavesChoices(const JobSpec& job);

/// `job` with these choices made in every way: precisions from fp32 on, and of each those with the
/// least outside the device first. With resources.recompute auto activations wait on the host by an
/// optimal schedule, too. What a choice has no use for is left out of it: a rate of the link, a
/// folder, fields of other precisions. Not all are valid.
std::vector<JobSpec> ChoicesOf(const JobSpec& job);

/// Decides `place`, a field of offload that `resources` leave open, on none. What they have no use
/// for then is left out, as it is of a choice.
void DecideWithoutOffload(std::string ResourceSpec::*place, ResourceSpec& resources);

}  // namespace weft
