#pragma once

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether anything of the training stands or waits outside the device. What is left to the planner
/// (open_choices.h) does not.
bool Offloads(const ResourceSpec& resources);

/// Whether the job has anything stand outside the device, or limits what the device holds: it then
/// runs on CPUs (docs/techniques/offload.md).
bool HasTiers(const ResourceSpec& resources);

/// kInvalid when what `job` offloads cannot be, or not with what else it asks for.
Status CheckOffload(const JobSpec& job);

}  // namespace weft
