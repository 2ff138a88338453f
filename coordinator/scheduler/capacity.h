#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "coordinator/scheduler/best_plan.h"
#include "coordinator/scheduler/link_levels.h"

namespace weft::coordinator {

/// What jobs compute with. Queues count cores of jobs on CPUs alone.
struct ComputeAmount {
  int64_t gpus = 0;
  int64_t cores = 0;

  ComputeAmount& operator+=(const ComputeAmount& other);
  ComputeAmount& operator-=(const ComputeAmount& other);
  bool operator==(const ComputeAmount&) const = default;
};

/// Whether `total` has at least as much of each as `wanted`.
inline bool Covers(const ComputeAmount& total, const ComputeAmount& wanted) {
  return total.gpus >= wanted.gpus && total.cores >= wanted.cores;
}

/// GPUs of a plan on GPUs, else cores.
ComputeAmount AmountOf(const Plan& plan);

/// Cores that a rank on CPUs has at least.
inline int64_t CoresOfARank(const ResourceSpec& resources) {
  return std::max<int64_t>(resources.threads_per_rank, 1);
}

/// Everything that the workers of a cluster offer, broken GPUs left out.
ComputeAmount AmountOf(const ClusterProfile& cluster);

/// "4 GPUs", "12 cores".
std::string Words(const ComputeAmount& amount);

/// Takes what the ranks of `plan` need from `free`: on GPUs cores and the GPUs, else cores and
/// memory.
void TakeCapacity(const Plan& plan, FreeMap& free);

/// Whether all ranks have room where the plan puts them.
bool Fits(const Plan& plan, FreeMap free);

/// Takes as much of `free` as has no more than `cores` cores together: first of the workers where
/// `own` (null: none) has ranks, then of the fullest worker that has that number, then of the
/// emptiest ones.
FreeMap WithCores(FreeMap free, int64_t cores, const Plan* own = nullptr);

/// What is free on the workers of a cluster, indexed by how much that is: a plan finds its place
/// among thousands of workers in the time that it takes to look at a few of them.
class CapacityPool {
 public:
  /// `cluster` outlives the pool and its copies. `links`: what was measured between its workers.
  CapacityPool(const ClusterProfile& cluster, const FreeMap& free,
               const std::vector<MeasuredLink>& links = {});

  const ComputeAmount& total() const { return all_.total; }

  /// Whether all ranks have room where the plan puts them.
  bool Fits(const Plan& plan) const;

  /// The same plan on workers that have room: where it was if possible, else on the fullest worker
  /// that holds all of it, else within the fullest rack that does, else in as few racks as
  /// possible. Within a rack the emptiest worker is filled first, so that neighbouring ranks share
  /// a machine and large rooms stay for large jobs. What moves to several workers is
  /// OnFasterLinks.
  std::optional<Plan> Place(const Plan& plan) const;

  /// The same plan on workers that are as good and whose slowest link is faster by a level: in the
  /// same racks, of the same hardware, with as much free. As it is where nothing was measured,
  /// where it has no room, or on one worker.
  Plan OnFasterLinks(Plan plan) const;

  void Take(const Plan& plan);

  /// Takes what `plan` needs beyond `held`, which is the same job's until it has stopped.
  void TakeBeyond(const Plan& held, const Plan& plan);

  /// Gives back what Take took. Workers that are not in the cluster any more give nothing.
  void Release(const Plan& plan);

  FreeMap ToMap() const;

 private:
  /// GPUs (0 in the order of CPUs), cores, index of the worker: most first.
  struct Room {
    int64_t devices;
    int64_t cores;
    size_t index;
    bool operator<(const Room& other) const {
      return std::tie(other.devices, other.cores, index) < std::tie(devices, cores, other.index);
    }
  };
  using Rooms = std::set<Room>;
  /// Workers with something free.
  struct Rack {
    ComputeAmount total;
    Rooms by_devices, by_cores;

    void Add(size_t index, const FreeCapacity& free);
    void Remove(size_t index, const FreeCapacity& free);
  };

  /// Workers that can take the place of each other in a plan.
  struct AlikeWorkers {
    std::vector<size_t> slots;    ///< Of the plan's workers, as positions among them.
    std::vector<size_t> members;  ///< All that are free, in the order of rooms.
  };

  static Room KeyOf(size_t index, const FreeCapacity& free, bool devices);
  const WorkerProfile& worker(size_t index) const { return cluster_->workers[index]; }
  /// Changes what is free on a worker.
  template <class Change>
  void Update(size_t index, Change change);
  /// `plan` on several workers.
  std::optional<Plan> Spread(const Plan& plan) const;
  /// Groups the workers of a plan with all that can take their places.
  std::vector<AlikeWorkers> AlikeOf(const std::vector<size_t>& own, bool devices) const;
  /// Chooses one worker in the place of each of a plan's `count` workers, all of a group of the
  /// tier; empty: no group has as many.
  std::vector<size_t> ChooseWithin(const LinkLevels::Tier& tier,
                                   const std::vector<AlikeWorkers>& alike, size_t count) const;
  /// The plan with each of its workers `own` replaced by the one of `others` at the same position;
  /// nullopt: that has no room.
  std::optional<Plan> Moved(const Plan& plan, const std::vector<size_t>& own,
                            const std::vector<size_t>& others) const;
  /// Puts ranks from `rank` on into the rooms, the emptiest first; the next rank.
  size_t FillAll(const Rack& rack, size_t rank, Plan& plan) const;
  /// Puts ranks from `rank` on into the room, as many as it holds; the next rank.
  size_t Fill(size_t index, size_t rank, Plan& plan) const;

  const ClusterProfile* cluster_;
  std::shared_ptr<const std::unordered_map<std::string, size_t>> index_of_;
  std::shared_ptr<const std::vector<size_t>> rack_of_;  ///< By worker; null: there is one rack.
  std::shared_ptr<const LinkLevels> links_;             ///< Null: nothing was measured.
  std::vector<FreeCapacity> free_;                      ///< By index of the worker.
  Rack all_;
  std::vector<Rack> racks_;  ///< By name; empty: there is one.
};

}  // namespace weft::coordinator
