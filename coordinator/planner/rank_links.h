#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/planner/machine_links.h"

namespace weft::planner {

/// What is stated of the network between the ranks of one plan. Remembers what it was asked: not
/// for several threads at once.
class RankLinks {
 public:
  /// A machine with ranks of the plan.
  struct Machine {
    size_t zone = 0;  ///< MachineLinks::ZoneOf.
    int64_t ranks = 0;
  };

  /// Ranks fill `machines` one after the other.
  RankLinks(std::shared_ptr<const MachineLinks> links, const std::vector<Machine>& machines);

  /// The worst link within any of the groups of `ranks` ranks into which each `span` successive
  /// ranks are divided (GroupOf).
  MachineLink OfGroups(int64_t ranks, int64_t span) const;
  /// The worst link from any rank to the one `stride` after it. `closes`: the last ones also send
  /// to the first ones.
  MachineLink OfHops(int64_t stride, bool closes) const;

 private:
  struct Place {
    size_t machine = 0;
    size_t zone = 0;
  };

  MachineLink OfGroup(int64_t first, int64_t end, int64_t stride) const;
  void AddHop(int64_t from, int64_t to, MachineLink& worst) const;

  std::shared_ptr<const MachineLinks> links_;
  std::vector<Place> of_rank_;
  mutable std::map<std::pair<int64_t, int64_t>, MachineLink> known_;  ///< By ranks and span.
};

}  // namespace weft::planner
