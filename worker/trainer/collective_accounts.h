#pragma once

#include <utility>
#include <vector>

#include "common/spec/resource_use.h"
#include "worker/engine/comm/collective_account.h"

namespace weft::trainer {

/// The account of all groups of one rank, summed up by axis of the mesh.
class CollectiveAccounts {
 public:
  CollectiveAccounts() = default;
  /// The accounts outlive this.
  explicit CollectiveAccounts(std::vector<engine::AxisAccount> accounts)
      : accounts_(std::move(accounts)) {}
  void Add(const std::vector<engine::AxisAccount>& accounts) {
    accounts_.insert(accounts_.end(), accounts.begin(), accounts.end());
  }

  /// Since the groups were made: a row for each axis and kind that there was.
  std::vector<CollectiveUse> Totals() const;

  /// Reports each operation to `profiler` (null: nobody) from now on. Between steps.
  void SetProfiler(engine::Profiler* profiler) const;

 private:
  std::vector<engine::AxisAccount> accounts_;
};

/// What was added to `before`, which has no row that `after` has not.
std::vector<CollectiveUse> Difference(std::vector<CollectiveUse> after,
                                      const std::vector<CollectiveUse>& before);

/// Means over this many steps.
std::vector<CollectiveUse> PerStep(std::vector<CollectiveUse> uses, double steps);

}  // namespace weft::trainer
