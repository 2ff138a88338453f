#pragma once

#include <memory>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "coordinator/planner/machine_links.h"

namespace weft::planner {

/// `links` of a cluster; null where it states none.
std::shared_ptr<const MachineLinks> MachineLinksOf(const ClusterProfile& cluster);

/// The workers of `cluster`, which outlives them, in the order in which ranks fill them: those with
/// usable GPUs alone if `on_devices`. The largest come first, so that few machines do the work; of
/// equals those of the largest rack, so that few switches are between them, then by name, and with
/// `links` those with fast links between them (FillOrder).
std::vector<const WorkerProfile*> WorkerOrder(const ClusterProfile& cluster, bool on_devices,
                                              const MachineLinks* links);

}  // namespace weft::planner
