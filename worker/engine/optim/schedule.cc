#include "worker/engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::engine {

double ScheduledLearningRate(const ScheduleSpec& schedule, double peak, int64_t step,
                             int64_t total_steps) {
  const int64_t done = std::min(step + 1, total_steps);
  if (done <= schedule.warmup_steps) {
    return peak * static_cast<double>(done) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == "constant") return peak;
  const double progress = static_cast<double>(done - schedule.warmup_steps) /
                          static_cast<double>(total_steps - schedule.warmup_steps);
  const double height = schedule.kind == "linear"
                            ? 1.0 - progress
                            : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (schedule.final_ratio + (1.0 - schedule.final_ratio) * height);
}

}  // namespace weft::engine
