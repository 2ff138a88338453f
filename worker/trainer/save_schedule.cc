#include "worker/trainer/save_schedule.h"

#include <algorithm>
#include <cstdlib>

#include "common/duration_text.h"
#include "common/spec/local_steps.h"

namespace weft::trainer {
namespace {

/// Shares of the newest measurement in a mean.
constexpr double kNewestStep = 0.1;
constexpr double kNewestSave = 0.3;

void Take(double seconds, double share, double& mean) {
  mean += (mean == 0 ? 1 : share) * (seconds - mean);
}

}  // namespace

SaveSchedule::SaveSchedule(const JobSpec& job, double between_failures_seconds)
    : every_steps_(job.checkpoint.every_steps),
      between_failures_seconds_(between_failures_seconds) {}

void SaveSchedule::OnStart(int64_t step, double seconds) {
  saved_step_ = step;
  restart_seconds_ = std::max(restart_seconds_, seconds);
}

void SaveSchedule::OnStep(double seconds) {
  Take(std::max(0.0, seconds), kNewestStep, step_seconds_);
}

void SaveSchedule::OnSave(int64_t step, std::optional<double> seconds) {
  saved_step_ = step;
  if (seconds) Take(*seconds, kNewestSave, stall_seconds_);
}

SaveCosts SaveSchedule::Costs() const {
  return {.stall_seconds = stall_seconds_,
          .background_seconds = background_seconds_,
          .restart_seconds = restart_seconds_,
          .between_failures_seconds = between_failures_seconds_,
          .step_seconds = step_seconds_};
}

bool SaveSchedule::Due(int64_t step) const {
  const int64_t steps = StepsBetweenSaves(Costs());
  return steps > 0 ? step - saved_step_ >= steps : IsDue(every_steps_, saved_step_, step);
}

std::string SaveSchedule::News() {
  const SaveCosts costs = Costs();
  const int64_t steps = StepsBetweenSaves(costs);
  if (steps == 0 ||
      (announced_steps_ > 0 && std::abs(steps - announced_steps_) * 4 < announced_steps_))
    return "";
  announced_steps_ = steps;
  return "a checkpoint every " + std::to_string(steps) + " steps: one holds up training for " +
         HumanDuration(costs.stall_seconds) + ", a start takes " +
         HumanDuration(costs.restart_seconds) + ", and one failure is expected in " +
         HumanDuration(costs.between_failures_seconds);
}

}  // namespace weft::trainer
