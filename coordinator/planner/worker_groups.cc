#include "coordinator/planner/worker_groups.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

#include "common/model/device_order.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/worker_order.h"

namespace weft::planner {
namespace {

/// Threads that a rank on a GPU has for its data and its checkpoints; more do nothing.
constexpr int64_t kMostThreadsOfDevice = 8;

/// Ranks on GPUs for which a worker with this many bytes has room besides these.
int64_t RanksThatFitWith(const CostedPlan& costed, int64_t bytes) {
  return costed.HostBytes() > 0 ? bytes / costed.HostBytes() : costed.ranks;
}

/// Whether they measured the same: all but names is equal.
bool Alike(const WorkerProfile& a, const WorkerProfile& b) {
  const auto measured = [](const WorkerProfile& worker) {
    return std::tie(worker.device, worker.cpu_model, worker.isa, worker.cores, worker.memory_bytes,
                    worker.memory_limit_bytes, worker.gemm, worker.copy_bytes_per_second,
                    worker.loopback_bytes_per_second, worker.network_bytes_per_second,
                    worker.network_latency_seconds, worker.between_racks_bytes_per_second,
                    worker.between_racks_latency_seconds, worker.disk_write_bytes_per_second,
                    worker.processors, worker.calibration);
  };
  const auto of_device = [](const DeviceSpec& d) {
    return std::tie(d.device, d.index, d.name, d.compute_capability, d.driver, d.memory_bytes,
                    d.memory_limit_bytes, d.pcie_generation, d.pcie_width, d.nvlinks, d.numa_node,
                    d.ecc, d.mig, d.unusable, d.gemm, d.copy_bytes_per_second,
                    d.upload_bytes_per_second, d.download_bytes_per_second, d.links);
  };
  return measured(a) == measured(b) &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [&](const DeviceSpec& one, const DeviceSpec& other) {
                      return of_device(one) == of_device(other);
                    });
}

}  // namespace

WorkerGroups::WorkerGroups(const ClusterProfile& cluster, const PrecisionRecipe& precision,
                           bool on_devices)
    : on_devices_(on_devices),
      links_(MachineLinksOf(cluster)),
      workers_(WorkerOrder(cluster, on_devices, links_.get())) {
  std::vector<const WorkerProfile*> first_of_kind;
  for (const WorkerProfile* worker : workers_) {
    if (links_ != nullptr) zones_.push_back(links_->ZoneOf(*worker));
    says_between_racks_ |=
        worker->between_racks_bytes_per_second > 0 || worker->between_racks_latency_seconds > 0;
    size_t kind = 0;
    while (kind < first_of_kind.size() && !Alike(*first_of_kind[kind], *worker)) ++kind;
    if (kind == first_of_kind.size()) {
      first_of_kind.push_back(worker);
      AddKind(*worker, precision);
    }
    if (groups_.empty() || groups_.back().kind != kind) {
      groups_.push_back(GroupOf(*worker));
      groups_.back().kind = kind;
    }
    ++groups_.back().count;
    kinds_.push_back(kind);
  }
}

WorkerGroups::Group WorkerGroups::GroupOf(const WorkerProfile& worker) const {
  Group group;
  group.cores = worker.cores;
  group.memory = worker.memory_limit_bytes;
  if (!on_devices_) return group;
  for (const DeviceSpec& device : worker.devices) {
    if (device.unusable.empty()) group.devices.push_back(device.memory_limit_bytes);
  }
  std::sort(group.devices.begin(), group.devices.end(), std::greater<>());
  return group;
}

void WorkerGroups::AddKind(const WorkerProfile& worker, const PrecisionRecipe& precision) {
  for (const DeviceSpec& device : worker.devices) {
    if (!on_devices_ || !device.unusable.empty()) continue;
    product_workspace_ =
        std::max(product_workspace_, ProductWorkspaceBytes(device.compute_capability));
  }
  rates_.push_back(MakeStepRates(worker, precision.products, on_devices_));
  const ProductKind products =
      on_devices_ ? ProductKind::kStored : ProcessorRates::ProductsOf(worker, precision.products);
  products_ = rates_.size() == 1 ? products : Fuller(products_, products);
}

int64_t WorkerGroups::Room(const Group& group, int64_t threads) const {
  const int64_t room = group.cores / threads;
  return on_devices_ ? std::min(room, std::ssize(group.devices)) : room;
}

int64_t WorkerGroups::RanksOn(const Group& group, const CostedPlan& costed, int64_t bytes,
                              int64_t left) const {
  const auto lacks = [bytes](int64_t limit) { return limit < bytes; };
  const int64_t held =
      on_devices_
          ? std::find_if(group.devices.begin(), group.devices.end(), lacks) - group.devices.begin()
          : group.memory / std::max<int64_t>(bytes, 1);
  return std::min({left, costed.ranks_per_worker, group.cores / costed.threads, held,
                   RanksThatFitWith(costed, group.memory)});
}

int64_t WorkerGroups::LargestHost() const {
  int64_t most = 0;
  for (const Group& group : groups_) most = std::max(most, group.memory);
  return most;
}

int64_t WorkerGroups::LargestLimit() const {
  int64_t most = 0;
  for (const Group& group : groups_) {
    most = std::max(most, on_devices_ ? group.devices.front() : group.memory);
  }
  return most;
}

std::set<int64_t> WorkerGroups::ThreadChoices(bool updates_on_host) const {
  std::set<int64_t> choices;
  for (const Group& group : groups_) {
    if (on_devices_) {
      const int64_t share = std::max<int64_t>(group.cores / std::ssize(group.devices), 1);
      choices.insert(std::min(share, kMostThreadsOfDevice));
      if (updates_on_host) choices.insert(share);
      continue;
    }
    // Skips the numbers of parts that give the same threads.
    for (int64_t parts = 1; parts <= group.cores; parts = group.cores / (group.cores / parts) + 1) {
      choices.insert(group.cores / parts);
    }
  }
  return choices;
}

std::vector<int64_t> WorkerGroups::SpreadChoices(int64_t ranks, int64_t threads) const {
  const int64_t most = std::max<int64_t>(MostOnWorker(threads), 1);
  std::vector<int64_t> choices;
  // Skips numbers of workers whose fullest one has as many ranks.
  for (int64_t used = 1; used <= std::ssize(workers_);) {
    const int64_t each = (ranks - 1) / used + 1;
    if (choices.empty() || choices.back() > each) choices.push_back(std::min(each, most));
    if (each == 1) break;
    used = (ranks - 1) / (each - 1) + 1;
  }
  std::reverse(choices.begin(), choices.end());
  return choices;
}

int64_t WorkerGroups::Slots(int64_t threads) const {
  int64_t slots = 0;
  for (const Group& group : groups_) slots += group.count * Room(group, threads);
  return slots;
}

bool WorkerGroups::HasCores(int64_t ranks, int64_t ranks_per_worker, int64_t threads) const {
  int64_t room = 0;
  for (const Group& group : groups_) {
    room += group.count * std::min(ranks_per_worker, Room(group, threads));
  }
  return room >= ranks;
}

bool WorkerGroups::HasRoom(const CostedPlan& costed, int64_t bytes) const {
  if (!costed.stage_bytes.empty()) {
    const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_);
    return std::accumulate(ranks_on.begin(), ranks_on.end(), int64_t{0}) == costed.ranks;
  }
  int64_t left = costed.ranks;
  for (const Group& group : groups_) {
    left -= std::min(left, group.count * RanksOn(group, costed, bytes, left));
  }
  return left == 0;
}

std::shared_ptr<const RankLinks> WorkerGroups::LinksOf(const CostedPlan& costed) const {
  if (links_ == nullptr) return nullptr;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_);
  std::vector<RankLinks::Machine> machines;
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] > 0) machines.push_back({zones_[worker], ranks_on[worker]});
  }
  return std::make_shared<const RankLinks>(links_, machines);
}

bool WorkerGroups::SpansRacks(const CostedPlan& costed) const {
  if (!says_between_racks_) return false;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_);
  const WorkerProfile* first = nullptr;
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] == 0) continue;
    if (first == nullptr) first = workers_[worker];
    if (workers_[worker]->rack != first->rack) return true;
  }
  return false;
}

std::vector<int64_t> WorkerGroups::RoomByPlace(const CostedPlan& costed) const {
  std::vector<int64_t> room(static_cast<size_t>(costed.pipeline),
                            std::numeric_limits<int64_t>::max());
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_);
  int64_t first = 0;
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    const Group group = GroupOf(*workers_[worker]);
    for (int64_t rank = first; rank < first + ranks_on[worker]; ++rank) {
      // Ranks take the GPUs with most memory.
      int64_t& least = room[static_cast<size_t>(rank * costed.pipeline / costed.ranks)];
      least = std::min(least, on_devices_ ? group.devices[static_cast<size_t>(ranks_on[worker] - 1)]
                                          : group.memory / ranks_on[worker]);
    }
    first += ranks_on[worker];
  }
  return room;
}

std::vector<std::pair<size_t, int64_t>> WorkerGroups::Placements(const CostedPlan& costed) const {
  std::vector<std::pair<size_t, int64_t>> placements;
  int64_t left = costed.ranks;
  for (const Group& group : groups_) {
    const int64_t each = RanksOn(group, costed, costed.PlacedBytes(), left);
    if (each == 0) continue;
    const int64_t full = std::min(group.count, left / each);
    placements.emplace_back(group.kind, each);
    left -= full * each;
    if (full == group.count || left == 0) continue;
    placements.emplace_back(group.kind, left);
    left = 0;
  }
  return placements;
}

int64_t BytesOfRank(const CostedPlan& costed, int64_t rank) {
  if (costed.stage_bytes.empty()) return costed.PlacedBytes();
  return costed.stage_bytes[static_cast<size_t>(rank * costed.pipeline / costed.ranks)];
}

std::vector<int64_t> PlaceRanks(const CostedPlan& costed,
                                const std::vector<const WorkerProfile*>& workers) {
  std::vector<int64_t> ranks_on;
  int64_t placed = 0;
  for (const WorkerProfile* worker : workers) {
    const int64_t room =
        std::min({costed.ranks - placed, costed.ranks_per_worker, worker->cores / costed.threads,
                  RanksThatFitWith(costed, worker->memory_limit_bytes)});
    int64_t held = 0, most = 0, sum = 0;
    for (; held < room; ++held) {
      const int64_t bytes = BytesOfRank(costed, placed + held);
      most = std::max(most, bytes);
      sum += bytes;
      if (costed.on_devices ? UsableDevices(worker->devices, most) <= held
                            : sum > worker->memory_limit_bytes) {
        break;
      }
    }
    ranks_on.push_back(held);
    placed += held;
  }
  return ranks_on;
}

}  // namespace weft::planner
