#include "coordinator/planner/report/devices.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "common/model/device_order.h"
#include "common/spec/planned_job.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/worker_order.h"

namespace weft::planner {
namespace {

int64_t DevicesOn(const WorkerProfile& worker, bool on_devices) {
  return on_devices ? UsableDevices(worker.devices) : 1;
}

WorkerProfile WithoutNames(WorkerProfile worker) {
  worker.worker_id.clear();
  worker.host.clear();
  for (DeviceSpec& device : worker.devices) device.uuid.clear();
  return worker;
}

void KeepDevices(WorkerProfile& worker, int64_t count) {
  const std::vector<int64_t> near = NearestDevices(worker.devices, count);
  const std::set<int64_t> kept(near.begin(), near.end());
  std::erase_if(worker.devices,
                [&](const DeviceSpec& device) { return !kept.contains(device.index); });
  for (DeviceSpec& device : worker.devices) {
    std::erase_if(device.links, [&](const DeviceLink& link) { return !kept.contains(link.index); });
  }
}

}  // namespace

int64_t CountDevices(const ClusterProfile& cluster, bool on_devices) {
  int64_t count = 0;
  for (const WorkerProfile& worker : cluster.workers) count += DevicesOn(worker, on_devices);
  return count;
}

ClusterProfile FirstDevices(const ClusterProfile& cluster, bool on_devices, int64_t count) {
  ClusterProfile first{.workers = {}, .links = cluster.links};
  int64_t left = count;
  const std::shared_ptr<const MachineLinks> links = MachineLinksOf(cluster);
  for (const WorkerProfile* worker : WorkerOrder(cluster, on_devices, links.get())) {
    const int64_t devices = DevicesOn(*worker, on_devices);
    if (left <= 0) break;
    first.workers.push_back(*worker);
    if (devices > left) KeepDevices(first.workers.back(), left);
    left -= std::min(left, devices);
  }
  return first;
}

std::vector<UsedMachine> MachinesOf(const Plan& plan, const ClusterProfile& cluster) {
  std::vector<UsedMachine> machines;
  for (const std::string& id : plan.rank_workers) {
    if (!machines.empty() && machines.back().worker->worker_id == id) {
      ++machines.back().ranks;
      continue;
    }
    const auto found = std::find_if(cluster.workers.begin(), cluster.workers.end(),
                                    [&](const auto& worker) { return worker.worker_id == id; });
    if (found != cluster.workers.end()) machines.push_back({&*found, 1});
  }
  return machines;
}

std::vector<ClusterProfile> KindsOf(const ClusterProfile& cluster) {
  std::vector<std::pair<WorkerProfile, ClusterProfile>> kinds;
  for (const WorkerProfile& worker : cluster.workers) {
    const WorkerProfile nameless = WithoutNames(worker);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const auto& each) { return each.first == nameless; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {nameless, {{}, cluster.links}});
    kind->second.workers.push_back(worker);
  }
  std::vector<ClusterProfile> clusters;
  for (auto& [nameless, machines] : kinds) clusters.push_back(std::move(machines));
  return clusters;
}

std::vector<std::string> LinesOf(const JobSpec& job, const Plan& plan) {
  std::vector<std::string> lines;
  const JobSpec planned = JobAsPlanned(job, plan);
  if (planned.train.precision != job.train.precision) {
    lines.push_back("train.precision: " + planned.train.precision);
  }
  const Json asked = ToJson(job.resources), chosen = ToJson(planned.resources);
  for (const auto& [name, value] : chosen.items()) {
    if (value != asked.at(name)) lines.push_back("resources." + name + ": " + value.dump());
  }
  return lines;
}

}  // namespace weft::planner
