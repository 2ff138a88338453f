#pragma once

#include <cstdint>

#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {

/// `free` without `spares` workers of the cluster that have no ranks, which are kept for jobs that
/// recover; without all such where there are fewer. They are the last ones by name, so that a job
/// finds the same workers free each time.
FreeMap WithoutSpares(const ClusterProfile& cluster, FreeMap free, int64_t spares);

}  // namespace weft::coordinator
