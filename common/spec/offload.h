#pragma once

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether anything of the training stands or waits outside the device. What is left to the planner
/// (open_choices.h) does not.
bool Offloads(const ResourceSpec& resources);

/// Whether tiers are wanted that only CPUs have, so that the job runs on these: a device or a link
/// that is emulated, weights in a file, or updates on the host between local steps
/// (docs/techniques/offload.md).
bool WantsTiersOfCpus(const JobSpec& job);

/// kInvalid when what `job` offloads cannot be, or not with what else it asks for.
Status CheckOffload(const JobSpec& job);

}  // namespace weft
