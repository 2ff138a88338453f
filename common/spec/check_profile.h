#pragma once

#include "common/spec/cluster_spec.h"
#include "common/status.h"

namespace weft {

/// kInvalid when a machine says something of itself that no machine has: numbers that are negative,
/// not finite or beyond anything built, no cores, more GPUs than can be. What is not known is 0.
/// Names the field and its value.
Status CheckProfile(const WorkerProfile& profile);

}  // namespace weft
