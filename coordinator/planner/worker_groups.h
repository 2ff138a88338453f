#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/precision.h"
#include "common/spec/cluster_spec.h"
#include "coordinator/planner/costed_plan.h"
#include "coordinator/planner/machine_links.h"
#include "coordinator/planner/rank_links.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// The workers of a cluster that count for a job, in the order in which ranks fill them
/// (WorkerOrder), with their rates. What measured the same is looked at once.
/// Does not change once it is made.
class WorkerGroups {
 public:
  /// Counts only workers with usable GPUs if `on_devices`. `cluster` outlives it.
  WorkerGroups(const ClusterProfile& cluster, const PrecisionRecipe& precision, bool on_devices);

  const std::vector<const WorkerProfile*>& workers() const { return workers_; }
  /// The kind of each worker: equal where all but names is equal, and below kind_count().
  const std::vector<size_t>& kinds() const { return kinds_; }
  size_t kind_count() const { return rates_.size(); }
  const StepRates& rates(size_t kind) const { return *rates_[kind]; }
  bool on_devices() const { return on_devices_; }

  /// The kind of products that takes at least the memory of any worker's.
  ProductKind products() const { return products_; }
  /// Workspace of the GPU that wants most.
  int64_t product_workspace_bytes() const { return product_workspace_; }
  /// The most memory that any offers: a worker, or one of its GPUs.
  int64_t LargestLimit() const;
  /// The most that a worker offers, whatever its GPUs do.
  int64_t LargestHost() const;

  /// Every way to cut some worker's cores into equal parts; on GPUs as many of a GPU's share of
  /// them as are of use, or all of it where some rank updates on the host.
  std::set<int64_t> ThreadChoices(bool updates_on_host) const;
  /// Most ranks that one worker may have, as they spread over one, two, ... all of them; the least
  /// first.
  std::vector<int64_t> SpreadChoices(int64_t ranks, int64_t threads) const;
  /// Ranks of `threads` for which the largest worker has cores and GPUs.
  int64_t MostOnWorker(int64_t threads) const { return Room(groups_.front(), threads); }
  /// Ranks of `threads` for which there are cores and GPUs.
  int64_t Slots(int64_t threads) const;

  /// Whether ranks find cores and GPUs, and whether those of the plan have room with this many
  /// bytes each.
  bool HasCores(int64_t ranks, int64_t ranks_per_worker, int64_t threads) const;
  bool HasRoom(const CostedPlan& costed, int64_t bytes) const;

  /// What the cluster states of the network between the ranks of the plan; null: nothing.
  std::shared_ptr<const RankLinks> LinksOf(const CostedPlan& costed) const;
  /// Whether ranks of the plan are in several racks and some machine says what lies between these.
  bool SpansRacks(const CostedPlan& costed) const;

  /// The room of each rank of a pipeline, for each of its replicas as they follow one another: of
  /// the workers that have some, the least.
  std::vector<int64_t> RoomByPlace(const CostedPlan& costed) const;

  /// PlaceRanks, without repetitions: a kind, and how many ranks are on one such worker.
  std::vector<std::pair<size_t, int64_t>> Placements(const CostedPlan& costed) const;

 private:
  /// Workers in a row that are of one kind.
  struct Group {
    size_t kind = 0;
    int64_t count = 0;
    int64_t cores = 0;
    int64_t memory = 0;            ///< On offer, in bytes.
    std::vector<int64_t> devices;  ///< What usable GPUs offer, in bytes, the most first.
  };

  Group GroupOf(const WorkerProfile& worker) const;
  void AddKind(const WorkerProfile& worker, const PrecisionRecipe& precision);
  int64_t Room(const Group& group, int64_t threads) const;
  int64_t RanksOn(const Group& group, const CostedPlan& costed, int64_t bytes, int64_t left) const;

  const bool on_devices_;
  const std::shared_ptr<const MachineLinks> links_;  ///< Null where the cluster states none.
  std::vector<const WorkerProfile*> workers_;
  std::vector<size_t> kinds_;
  std::vector<Group> groups_;
  bool says_between_racks_ = false;  ///< Some worker does.
  std::vector<size_t> zones_;        ///< By worker, where it does.
  std::vector<std::unique_ptr<const StepRates>> rates_;
  ProductKind products_ = ProductKind::kUnpacked;
  int64_t product_workspace_ = 0;
};

}  // namespace weft::planner
