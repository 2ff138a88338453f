#include "common/model/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

namespace weft {

double OptimalSavePeriod(double stall_seconds, double restart_seconds,
                         double between_failures_seconds) {
  const double stall = stall_seconds;
  return stall +
         std::sqrt(stall * stall + 2 * (between_failures_seconds + restart_seconds) * stall);
}

int64_t StepsBetweenSaves(const SaveCosts& costs) {
  if (!(costs.stall_seconds > 0) || !(costs.between_failures_seconds > 0) ||
      !(costs.step_seconds > 0)) {
    return 0;
  }
  const double period =
      OptimalSavePeriod(costs.stall_seconds, costs.restart_seconds, costs.between_failures_seconds);
  const double training = std::clamp(period - costs.stall_seconds, 0.0, kLongestSaveInterval);
  const double least = std::ceil(costs.background_seconds / costs.step_seconds);
  return static_cast<int64_t>(std::max({1.0, least, std::floor(training / costs.step_seconds)}));
}

}  // namespace weft
