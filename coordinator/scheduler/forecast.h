#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {

/// When jobs that wait are expected to start, each taken in its turn: counts what is free, and not
/// where, so that it takes no time for a hundred thousand jobs.
class Forecast {
 public:
  /// `releases`: of active jobs, soonest first, in seconds from now.
  Forecast(const ComputeAmount& free,
           const std::vector<std::pair<double, ComputeAmount>>& releases);

  /// A job that starts now, before those that have had their turn.
  void Hold(const ComputeAmount& amount, double seconds);

  /// Seconds from now until the next job in turn starts that takes `amount` for `seconds`; nullopt:
  /// not known, and then neither of any after it.
  std::optional<double> Start(const ComputeAmount& amount, double seconds);

 private:
  using Release = std::pair<double, ComputeAmount>;

  ComputeAmount free_;
  double now_ = 0;
  bool known_ = true;
  std::vector<Release> releases_;  ///< A heap, soonest on top.
};

}  // namespace weft::coordinator
