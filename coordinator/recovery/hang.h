#pragma once

#include <optional>
#include <span>
#include <string>

#include "coordinator/recovery/hang_limits.h"

namespace weft::coordinator {

/// The rank that alone does not wait as all others of the attempt do, where there is just one such:
/// it waits in no collective, or in another one than they. Where that is not known, its process is
/// stopped, waits for a disk, or computes while the others sleep.
struct OddRank {
  std::string worker_id;
  std::string rank;  ///< "rank 1"
  std::string state;
};
std::optional<OddRank> FindOddRank(std::span<const PlacementActivity> placements);

/// Why the attempt counts as hung: every one of its placements has been silent for longer than what
/// it does may take. nullopt: it does not. One placement that shows life is enough, as the others
/// may wait for it. Names the odd rank where there is one.
std::optional<std::string> FindHang(std::span<const PlacementActivity> placements,
                                    const ActivityForecast& forecast, const QuietTimes& quiet,
                                    const HangRules& rules);

}  // namespace weft::coordinator
