#include "coordinator/planner/worker_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "common/model/device_order.h"

namespace weft::planner {
namespace {

/// A worker that counts for a job.
struct Counted {
  const WorkerProfile* worker;
  int64_t devices = 0;
  int64_t in_rack = 0;  ///< Of GPUs or cores.

  auto Size() const { return std::tuple(devices, worker->cores, worker->memory_limit_bytes); }
};

/// Without links.
std::vector<Counted> BySize(const ClusterProfile& cluster, bool on_devices) {
  std::vector<Counted> counted;
  std::map<std::string_view, int64_t> in_rack;
  for (const WorkerProfile& worker : cluster.workers) {
    const int64_t devices = on_devices ? UsableDevices(worker.devices) : 0;
    if (on_devices && devices == 0) continue;
    counted.push_back({&worker, devices});
    in_rack[worker.rack] += on_devices ? devices : worker.cores;
  }
  for (Counted& each : counted) each.in_rack = in_rack.at(each.worker->rack);
  std::sort(counted.begin(), counted.end(), [](const Counted& a, const Counted& b) {
    const WorkerProfile &one = *a.worker, &other = *b.worker;
    return std::tuple(b.Size(), b.in_rack, std::tie(one.rack, one.worker_id)) <
           std::tuple(a.Size(), a.in_rack, std::tie(other.rack, other.worker_id));
  });
  return counted;
}

}  // namespace

std::shared_ptr<const MachineLinks> MachineLinksOf(const ClusterProfile& cluster) {
  return cluster.links.empty() ? nullptr : std::make_shared<const MachineLinks>(cluster);
}

std::vector<const WorkerProfile*> WorkerOrder(const ClusterProfile& cluster, bool on_devices,
                                              const MachineLinks* links) {
  const std::vector<Counted> counted = BySize(cluster, on_devices);
  std::vector<const WorkerProfile*> workers;
  if (links == nullptr) {
    for (const Counted& each : counted) workers.push_back(each.worker);
    return workers;
  }
  std::vector<size_t> zones, classes;
  for (size_t i = 0; i < counted.size(); ++i) {
    const bool as_before = i > 0 && counted[i].Size() == counted[i - 1].Size();
    classes.push_back(as_before ? classes.back() : i);
    zones.push_back(links->ZoneOf(*counted[i].worker));
  }
  for (const size_t index : FillOrder(*links, zones, classes)) {
    workers.push_back(counted[index].worker);
  }
  return workers;
}

}  // namespace weft::planner
