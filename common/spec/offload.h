#pragma once

#include <string_view>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether `place`, the value of a field of offload, is outside the device. What is left to the
/// planner is not.
inline bool IsOffloaded(std::string_view place) {
  return place != "none" && place != "auto";
}

/// Whether anything of the training is or waits outside the device. What is left to the planner
/// (open_choices.h) does not.
bool Offloads(const ResourceSpec& resources);

/// Whether something is wanted that only CPUs have, so that the job runs on these: a device or a
/// link that is emulated, weights in a file, updates on the host between local steps
/// (docs/techniques/offload.md), or the same bits on any mesh.
bool NeedsCpus(const JobSpec& job);

/// kInvalid when what `job` offloads needs something that it does not ask for. What it does not
/// combine with is in compatibility.h.
Status CheckOffload(const JobSpec& job);

}  // namespace weft
