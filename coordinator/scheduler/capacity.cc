#include "coordinator/scheduler/capacity.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/model/device_order.h"

namespace weft::coordinator {
namespace {

/// What the rank takes of its worker's memory: on a GPU what it has outside of that.
int64_t WorkerBytes(const Plan& plan, size_t rank) {
  const int64_t bytes = BytesOfRank(plan, static_cast<int64_t>(rank));
  if (!OnDevices(plan)) return bytes;
  const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
  const bool offloads = plan.offload_optimizer != "none" || plan.offload_activations != "none";
  return offloads ? TotalBytes(memory) - bytes : memory.snapshots_bytes;
}

/// Whether the rank fits, too, on GPUs on `device`; takes its share if so.
bool TakeRank(const Plan& plan, size_t rank, int64_t device, FreeCapacity& free) {
  if (free.cores < plan.threads_per_rank) return false;
  const int64_t bytes = WorkerBytes(plan, rank);
  if (free.memory_bytes < bytes) return false;
  if (OnDevices(plan) && free.devices.erase(device) == 0) return false;
  free.memory_bytes -= bytes;
  free.cores -= plan.threads_per_rank;
  return true;
}

bool IsUsable(const WorkerProfile& worker, int64_t device) {
  return std::any_of(worker.devices.begin(), worker.devices.end(), [&](const DeviceSpec& spec) {
    return spec.index == device && spec.unusable.empty();
  });
}

/// Whether a plan takes as long on one as on the other, as far as is known.
bool SameHardware(const WorkerProfile& a, const WorkerProfile& b) {
  const auto machine = [](const WorkerProfile& worker) {
    return std::tie(worker.device, worker.cpu_model, worker.isa, worker.cores, worker.processors,
                    worker.network_bytes_per_second, worker.network_latency_seconds);
  };
  return machine(a) == machine(b) &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [](const DeviceSpec& one, const DeviceSpec& other) {
                      return one.name == other.name &&
                             one.unusable.empty() == other.unusable.empty();
                    });
}

std::string Counted(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

ComputeAmount& ComputeAmount::operator+=(const ComputeAmount& other) {
  gpus += other.gpus;
  cores += other.cores;
  return *this;
}

ComputeAmount& ComputeAmount::operator-=(const ComputeAmount& other) {
  gpus -= other.gpus;
  cores -= other.cores;
  return *this;
}

ComputeAmount AmountOf(const Plan& plan) {
  const int64_t ranks = std::ssize(plan.rank_workers);
  return OnDevices(plan) ? ComputeAmount{ranks, 0}
                         : ComputeAmount{0, ranks * plan.threads_per_rank};
}

ComputeAmount AmountOf(const ClusterProfile& cluster) {
  ComputeAmount amount;
  for (const WorkerProfile& worker : cluster.workers) {
    amount += {UsableDevices(worker.devices), worker.cores};
  }
  return amount;
}

std::string Words(const ComputeAmount& amount) {
  return amount.gpus > 0 ? Counted(amount.gpus, "GPU") : Counted(amount.cores, "core");
}

FreeMap WithCores(FreeMap free, int64_t cores, const Plan* own) {
  std::set<std::string> workers_of_own;
  if (own != nullptr) workers_of_own.insert(own->rank_workers.begin(), own->rank_workers.end());
  using Order = std::tuple<bool, bool, int64_t>;  // less comes first
  std::vector<std::pair<Order, FreeCapacity*>> rooms;
  for (auto& [worker, room] : free) {
    const bool holds_all = room.cores >= cores;
    rooms.emplace_back(
        Order(!workers_of_own.contains(worker), !holds_all, holds_all ? room.cores : -room.cores),
        &room);
  }
  std::stable_sort(rooms.begin(), rooms.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [order, room] : rooms) {
    room->cores = std::min(room->cores, cores);
    cores -= room->cores;
  }
  return free;
}

bool Fits(const Plan& plan, FreeMap free) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto it = free.find(plan.rank_workers[rank]);
    if (it == free.end() || !TakeRank(plan, rank, DeviceOf(plan, rank), it->second)) return false;
  }
  return true;
}

void TakeCapacity(const Plan& plan, FreeMap& free) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto it = free.find(plan.rank_workers[rank]);
    if (it == free.end()) continue;
    it->second.cores -= plan.threads_per_rank;
    if (OnDevices(plan)) it->second.devices.erase(DeviceOf(plan, rank));
    // A worker without cores stays: its memory is of use to the job that gives it cores back.
    it->second.memory_bytes -= WorkerBytes(plan, rank);
  }
}

CapacityPool::CapacityPool(const ClusterProfile& cluster, const FreeMap& free,
                           const std::vector<MeasuredLink>& links)
    : cluster_(&cluster), free_(cluster.workers.size()) {
  std::map<std::string, size_t> racks;
  for (const WorkerProfile& worker : cluster.workers) racks.emplace(worker.rack, racks.size());
  if (racks.size() > 1) {
    std::vector<size_t> rack_of;
    for (const WorkerProfile& worker : cluster.workers) rack_of.push_back(racks.at(worker.rack));
    rack_of_ = std::make_shared<const std::vector<size_t>>(std::move(rack_of));
    racks_.resize(racks.size());
  }
  std::unordered_map<std::string, size_t> index_of;
  for (size_t index = 0; index < cluster.workers.size(); ++index) {
    const std::string& id = cluster.workers[index].worker_id;
    index_of.emplace(id, index);
    auto it = free.find(id);
    if (it == free.end()) continue;
    Update(index, [&](FreeCapacity& capacity) { capacity = it->second; });
  }
  if (!links.empty()) links_ = std::make_shared<const LinkLevels>(index_of, links);
  index_of_ = std::make_shared<const std::unordered_map<std::string, size_t>>(std::move(index_of));
}

CapacityPool::Room CapacityPool::KeyOf(size_t index, const FreeCapacity& free, bool devices) {
  return {devices ? std::ssize(free.devices) : 0, free.cores, index};
}

void CapacityPool::Rack::Add(size_t index, const FreeCapacity& free) {
  // A rank on a GPU needs a core.
  if (free.cores < 1) return;
  total += {std::ssize(free.devices), free.cores};
  by_cores.insert(KeyOf(index, free, false));
  if (!free.devices.empty()) by_devices.insert(KeyOf(index, free, true));
}

void CapacityPool::Rack::Remove(size_t index, const FreeCapacity& free) {
  if (free.cores < 1) return;
  total -= {std::ssize(free.devices), free.cores};
  by_cores.erase(KeyOf(index, free, false));
  by_devices.erase(KeyOf(index, free, true));
}

template <class Change>
void CapacityPool::Update(size_t index, Change change) {
  FreeCapacity& free = free_[index];
  Rack* rack = rack_of_ ? &racks_[(*rack_of_)[index]] : nullptr;
  all_.Remove(index, free);
  if (rack != nullptr) rack->Remove(index, free);
  change(free);
  all_.Add(index, free);
  if (rack != nullptr) rack->Add(index, free);
}

bool CapacityPool::Fits(const Plan& plan) const {
  std::map<size_t, FreeCapacity> left;
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto found = index_of_->find(plan.rank_workers[rank]);
    if (found == index_of_->end()) return false;
    auto [it, added] = left.try_emplace(found->second);
    if (added) it->second = free_[found->second];
    if (!TakeRank(plan, rank, DeviceOf(plan, rank), it->second)) return false;
  }
  return true;
}

size_t CapacityPool::Fill(size_t index, size_t rank, Plan& plan) const {
  FreeCapacity room = free_[index];
  std::vector<int64_t> devices;
  if (OnDevices(plan)) {
    const int64_t wanted = std::min(static_cast<int64_t>(plan.rank_workers.size() - rank),
                                    room.cores / plan.threads_per_rank);
    int64_t bytes = 0;
    for (int64_t i = 0; i < wanted; ++i) {
      bytes = std::max(bytes, BytesOfRank(plan, static_cast<int64_t>(rank) + i));
    }
    devices = NearestDevices(FreeDevices(worker(index), room), wanted, bytes);
  }
  size_t next = 0;
  while (rank < plan.rank_workers.size()) {
    const int64_t device = next < devices.size() ? devices[next++] : -1;
    if (!TakeRank(plan, rank, device, room)) break;
    plan.rank_workers[rank++] = worker(index).worker_id;
    if (OnDevices(plan)) plan.rank_devices.push_back(device);
  }
  return rank;
}

std::optional<Plan> CapacityPool::Place(const Plan& plan) const {
  if (plan.rank_workers.empty()) return std::nullopt;
  if (Fits(plan)) return plan;
  const bool on_devices = OnDevices(plan);
  const int64_t ranks = std::ssize(plan.rank_workers);
  const int64_t cores = ranks * plan.threads_per_rank;
  if (!Covers(all_.total, {on_devices ? ranks : 0, cores})) return std::nullopt;
  const Rooms& rooms = on_devices ? all_.by_devices : all_.by_cores;
  Plan placed = plan;
  // Those that may hold all of it come first, the fullest of them last.
  auto end =
      rooms.upper_bound({on_devices ? ranks : 0, on_devices ? 0 : cores, cluster_->workers.size()});
  for (auto it = end; it != rooms.begin();) {
    --it;
    if (it->cores < cores) continue;
    const Room first{it->devices, it->cores, 0};
    for (auto alike = rooms.lower_bound(first); alike != rooms.end(); ++alike) {
      if (alike->devices != first.devices || alike->cores != first.cores) break;
      placed.rank_devices.clear();
      if (Fill(alike->index, 0, placed) == placed.rank_workers.size()) return placed;
    }
    it = rooms.lower_bound(first);
  }
  std::optional<Plan> spread = Spread(plan);
  if (spread) spread = OnFasterLinks(*std::move(spread));
  return spread;
}

size_t CapacityPool::FillAll(const Rack& rack, size_t rank, Plan& plan) const {
  for (const Room& room : OnDevices(plan) ? rack.by_devices : rack.by_cores) {
    if (rank == plan.rank_workers.size()) break;
    rank = Fill(room.index, rank, plan);
  }
  return rank;
}

std::optional<Plan> CapacityPool::Spread(const Plan& plan) const {
  const size_t ranks = plan.rank_workers.size();
  Plan placed = plan;
  placed.rank_devices.clear();
  if (racks_.empty()) {
    return FillAll(all_, 0, placed) == ranks ? std::optional(placed) : std::nullopt;
  }
  std::vector<const Rack*> racks;
  for (const Rack& rack : racks_) racks.push_back(&rack);
  const bool on_devices = OnDevices(plan);
  std::stable_sort(racks.begin(), racks.end(), [&](const Rack* a, const Rack* b) {
    return on_devices ? a->total.gpus < b->total.gpus : a->total.cores < b->total.cores;
  });
  for (const Rack* rack : racks) {
    const auto all = static_cast<int64_t>(ranks);
    if (!Covers(rack->total, {on_devices ? all : 0, all * plan.threads_per_rank})) continue;
    placed.rank_devices.clear();
    if (FillAll(*rack, 0, placed) == ranks) return placed;
  }
  placed.rank_devices.clear();
  size_t rank = 0;
  for (auto it = racks.rbegin(); it != racks.rend(); ++it) rank = FillAll(**it, rank, placed);
  return rank == ranks ? std::optional(placed) : std::nullopt;
}

Plan CapacityPool::OnFasterLinks(Plan plan) const {
  if (!links_ || !Fits(plan)) return plan;
  std::vector<size_t> own;
  for (const std::string& id : plan.rank_workers) {
    const size_t index = index_of_->at(id);
    if (std::find(own.begin(), own.end(), index) == own.end()) own.push_back(index);
  }
  if (own.size() < 2) return plan;
  const std::vector<AlikeWorkers> alike = AlikeOf(own, OnDevices(plan));
  for (const LinkLevels::Tier& tier : links_->tiers()) {
    if (links_->Reaches(tier, own)) break;
    const std::vector<size_t> others = ChooseWithin(tier, alike, own.size());
    if (others.empty()) continue;
    if (std::optional<Plan> moved = Moved(plan, own, others)) return *std::move(moved);
  }
  return plan;
}

std::vector<CapacityPool::AlikeWorkers> CapacityPool::AlikeOf(const std::vector<size_t>& own,
                                                              bool devices) const {
  std::vector<AlikeWorkers> alike;
  for (size_t slot = 0; slot < own.size(); ++slot) {
    const size_t index = own[slot];
    auto found = std::find_if(alike.begin(), alike.end(), [&](const AlikeWorkers& each) {
      return std::binary_search(each.members.begin(), each.members.end(), index);
    });
    if (found == alike.end()) {
      found = alike.emplace(alike.end());
      const Rack& rack = rack_of_ ? racks_[(*rack_of_)[index]] : all_;
      const Rooms& rooms = devices ? rack.by_devices : rack.by_cores;
      const Room room = KeyOf(index, free_[index], devices);
      for (auto it = rooms.lower_bound({room.devices, room.cores, 0}); it != rooms.end(); ++it) {
        if (it->devices != room.devices || it->cores != room.cores) break;
        if (SameHardware(worker(it->index), worker(index))) found->members.push_back(it->index);
      }
    }
    found->slots.push_back(slot);
  }
  return alike;
}

std::vector<size_t> CapacityPool::ChooseWithin(const LinkLevels::Tier& tier,
                                               const std::vector<AlikeWorkers>& alike,
                                               size_t count) const {
  std::vector<std::unordered_map<size_t, std::vector<size_t>>> by_group(alike.size());
  std::vector<size_t> groups;
  for (size_t i = 0; i < alike.size(); ++i) {
    for (size_t member : alike[i].members) {
      std::vector<size_t>& of_group = by_group[i][tier.group_of[member]];
      if (i == 0 && of_group.empty()) groups.push_back(tier.group_of[member]);
      of_group.push_back(member);
    }
  }
  for (size_t group : groups) {
    std::vector<size_t> chosen(count);
    std::unordered_set<size_t> taken;
    bool complete = true;
    for (size_t i = 0; i < alike.size() && complete; ++i) {
      const std::vector<size_t>& slots = alike[i].slots;
      size_t filled = 0;
      for (size_t member : by_group[i][group]) {
        if (filled == slots.size()) break;
        if (links_->HasSlowerTo(taken, member, tier.level)) continue;
        taken.insert(member);
        chosen[slots[filled++]] = member;
      }
      complete = filled == slots.size();
    }
    if (complete) return chosen;
  }
  return {};
}

std::optional<Plan> CapacityPool::Moved(const Plan& plan, const std::vector<size_t>& own,
                                        const std::vector<size_t>& others) const {
  Plan moved = plan;
  for (size_t slot = 0; slot < own.size(); ++slot) {
    if (own[slot] == others[slot]) continue;
    const WorkerProfile& target = worker(others[slot]);
    std::vector<size_t> ranks;
    int64_t bytes = 0;
    for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
      if (plan.rank_workers[rank] != worker(own[slot]).worker_id) continue;
      ranks.push_back(rank);
      bytes = std::max(bytes, BytesOfRank(plan, static_cast<int64_t>(rank)));
      moved.rank_workers[rank] = target.worker_id;
    }
    if (!OnDevices(plan)) continue;
    const std::vector<int64_t> devices =
        NearestDevices(FreeDevices(target, free_[others[slot]]), std::ssize(ranks), bytes);
    if (devices.size() < ranks.size()) return std::nullopt;
    for (size_t i = 0; i < ranks.size(); ++i) moved.rank_devices[ranks[i]] = devices[i];
  }
  return Fits(moved) ? std::optional(std::move(moved)) : std::nullopt;
}

void CapacityPool::Take(const Plan& plan) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto found = index_of_->find(plan.rank_workers[rank]);
    if (found == index_of_->end()) continue;
    Update(found->second, [&](FreeCapacity& free) {
      free.cores -= plan.threads_per_rank;
      free.memory_bytes -= WorkerBytes(plan, rank);
      if (OnDevices(plan)) free.devices.erase(DeviceOf(plan, rank));
    });
  }
}

void CapacityPool::TakeBeyond(const Plan& held, const Plan& plan) {
  std::map<size_t, FreeCapacity> more;
  const auto add = [&](const Plan& of, int64_t sign) {
    for (size_t rank = 0; rank < of.rank_workers.size(); ++rank) {
      auto found = index_of_->find(of.rank_workers[rank]);
      if (found == index_of_->end()) continue;
      FreeCapacity& worker = more[found->second];
      worker.cores += sign * of.threads_per_rank;
      worker.memory_bytes += sign * WorkerBytes(of, rank);
      if (!OnDevices(of)) continue;
      if (sign > 0) {
        worker.devices.insert(DeviceOf(of, rank));
      } else {
        worker.devices.erase(DeviceOf(of, rank));
      }
    }
  };
  add(plan, 1);
  add(held, -1);
  for (const auto& [index, need] : more) {
    Update(index, [&wanted = need](FreeCapacity& free) {
      free.cores -= std::max<int64_t>(wanted.cores, 0);
      free.memory_bytes -= std::max<int64_t>(wanted.memory_bytes, 0);
      for (const int64_t device : wanted.devices) free.devices.erase(device);
    });
  }
}

void CapacityPool::Release(const Plan& plan) {
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    auto found = index_of_->find(plan.rank_workers[rank]);
    if (found == index_of_->end()) continue;
    const int64_t device = DeviceOf(plan, rank);
    Update(found->second, [&](FreeCapacity& free) {
      free.cores += plan.threads_per_rank;
      free.memory_bytes += WorkerBytes(plan, rank);
      if (OnDevices(plan) && IsUsable(worker(found->second), device)) free.devices.insert(device);
    });
  }
}

FreeMap CapacityPool::ToMap() const {
  FreeMap map;
  for (size_t index = 0; index < free_.size(); ++index) {
    if (free_[index].cores >= 1) map[worker(index).worker_id] = free_[index];
  }
  return map;
}

}  // namespace weft::coordinator
