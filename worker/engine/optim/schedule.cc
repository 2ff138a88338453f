#include "worker/engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::engine {
namespace {

// Height above the final rate, 1 at the peak and 0 at the end, `progress` of the way to the end.
double Height(const ScheduleSpec& schedule, double progress) {
  if (schedule.kind == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return 1.0 - progress;
}

// Steps at the end over which the rate falls.
int64_t FallingSteps(const ScheduleSpec& schedule, int64_t total_steps) {
  const int64_t after_warmup = total_steps - schedule.warmup_steps;
  if (schedule.kind != "warmup_stable_decay") return after_warmup;
  const int64_t wanted = schedule.decay_steps > 0 ? schedule.decay_steps : total_steps / 10;
  return std::clamp<int64_t>(wanted, 1, after_warmup);
}

}  // namespace

double PeakLearningRate(const JobSpec& job) {
  const ScheduleSpec& schedule = job.schedule;
  const double peak = job.optimizer.learning_rate;
  if (schedule.batch_scaling == "none" || schedule.reference_batch == 0) return peak;
  const double ratio =
      static_cast<double>(job.train.global_batch) / static_cast<double>(schedule.reference_batch);
  return peak * (schedule.batch_scaling == "linear" ? ratio : std::sqrt(ratio));
}

double ScheduledLearningRate(const ScheduleSpec& schedule, double peak, int64_t step,
                             int64_t steps) {
  const int64_t total_steps = schedule.steps_before + steps + schedule.steps_after;
  const int64_t done = std::min(schedule.steps_before + step + 1, total_steps);
  if (done <= schedule.warmup_steps) {
    return peak * static_cast<double>(done) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == "constant") return peak;
  if (schedule.kind == "inverse_sqrt") {
    const auto from = static_cast<double>(std::max<int64_t>(schedule.warmup_steps, 1));
    return peak * std::sqrt(from / static_cast<double>(done));
  }
  const int64_t falling = FallingSteps(schedule, total_steps);
  const int64_t fallen = done - (total_steps - falling);
  if (fallen <= 0) return peak;
  const double progress = static_cast<double>(fallen) / static_cast<double>(falling);
  return peak * (schedule.final_ratio + (1.0 - schedule.final_ratio) * Height(schedule, progress));
}

}  // namespace weft::engine
