#include "cli/cluster_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/spec/check_links.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

template <class T>
Result<T> Load(const std::string& path) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 20;
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, kMostBytes));
  WEFT_ASSIGN_OR_RETURN(Document document, ParseYaml(text, path));
  return FromJson<T>(document);
}

/// A cluster file as it is written.
struct WrittenCluster {
  std::vector<MachineGroup> workers;
  std::vector<LinkSpec> links;
  ClusterCosts costs;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("workers", "The machines."), self.workers);
    visit(Field("links", "What lies between some of them.").Range(0, 256), self.links);
    visit(Field("costs", "What the machines cost."), self.costs);
  }
};

constexpr int64_t kMostMachines = 65536;

/// Makes `gpus` of the one that is described.
Status RepeatGpus(int64_t gpus, WorkerProfile& worker) {
  if (gpus == 0) return OkStatus();
  if (worker.devices.size() != 1 || worker.devices[0].links.size() > 1) {
    return InvalidError(
        "worker " + worker.worker_id + ": gpus: " + std::to_string(gpus) +
        " wants one entry of devices, with one of links at most; hint: describe one "
        "GPU, or list all of them and leave gpus out");
  }
  const DeviceSpec one = worker.devices[0];
  worker.devices.clear();
  for (int64_t index = 0; index < gpus; ++index) {
    DeviceSpec& device = worker.devices.emplace_back(one);
    device.index = index;
    device.links.clear();
    for (int64_t other = 0; other < gpus && !one.links.empty(); ++other) {
      if (other == index) continue;
      device.links.push_back(one.links[0]);
      device.links.back().index = other;
    }
  }
  return OkStatus();
}

/// Refuses what is said of several racks where there is one.
Status CheckRacks(const std::vector<WorkerProfile>& workers) {
  const auto says = std::find_if(workers.begin(), workers.end(), [](const WorkerProfile& worker) {
    return worker.between_racks_bytes_per_second > 0 || worker.between_racks_latency_seconds > 0;
  });
  const bool several =
      std::any_of(workers.begin(), workers.end(),
                  [&](const WorkerProfile& worker) { return worker.rack != workers.front().rack; });
  if (says == workers.end() || several) return OkStatus();
  return InvalidError("worker " + says->worker_id +
                      " says what lies between racks, but all machines are in the same one; hint: "
                      "give each of workers its `rack`");
}

}  // namespace

Result<ClusterFile> LoadClusterFile(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(WrittenCluster written, Load<WrittenCluster>(path));
  ClusterFile file{.cluster = {.workers = {}, .links = std::move(written.links)},
                   .costs = std::move(written.costs)};
  for (const MachineGroup& group : written.workers) {
    WorkerProfile worker = group.worker;
    if (Status status = RepeatGpus(group.gpus, worker); !status.ok()) {
      return InvalidError(path + ": " + status.message());
    }
    if (std::ssize(file.cluster.workers) + group.count > kMostMachines) {
      return InvalidError(path + ": more than " + std::to_string(kMostMachines) + " machines");
    }
    for (int64_t number = 0; number < group.count; ++number) {
      file.cluster.workers.push_back(worker);
      if (group.count > 1) {
        file.cluster.workers.back().worker_id += "-" + std::to_string(number);
      }
    }
  }
  for (const Status& status : {CheckRacks(file.cluster.workers), CheckLinks(file.cluster)}) {
    if (!status.ok()) return InvalidError(path + ": " + status.message());
  }
  return file;
}

Result<ClusterCosts> LoadCostsFile(const std::string& path) {
  return Load<ClusterCosts>(path);
}

}  // namespace weft::cli
