#pragma once

#include "common/spec/cluster_spec.h"
#include "common/status.h"

namespace weft {

/// kInvalid when `links` of a cluster do not say what lies between which of its machines: a link
/// that names neither two machines nor two racks, or one that is not there, or says neither rate
/// nor latency; the same two twice; a rate that a machine does not reach at all. Names the link.
/// Linear in the cluster.
Status CheckLinks(const ClusterProfile& cluster);

}  // namespace weft
