#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "common/model/checkpoint_interval.h"
#include "common/spec/job_spec.h"

namespace weft::trainer {

/// When rank 0 wants a checkpoint with `checkpoint.interval: auto`: every_steps until a save has
/// been measured, then what loses least time (common/model/checkpoint_interval.h). All ranks follow
/// its word. Not thread-safe, except OnBackground.
class SaveSchedule {
 public:
  /// `between_failures_seconds`: of the machines that the attempt runs on; 0: not known.
  SaveSchedule(const JobSpec& job, double between_failures_seconds);

  /// The attempt has started in `seconds`, from step `step`.
  void OnStart(int64_t step, double seconds);
  /// A step took that long, without saves and validation.
  void OnStep(double seconds);
  /// Training waited for `seconds` for the save of step `step`; nullopt: nothing was saved.
  void OnSave(int64_t step, std::optional<double> seconds);
  /// A save has ended that took so long in the background. From any thread.
  void OnBackground(double seconds) { background_seconds_ = seconds; }

  /// Whether to save after step `step`.
  bool Due(int64_t step) const;

  /// Steps between saves and what they follow from, for people, when they have changed by a quarter
  /// since it was last asked; empty: they have not.
  std::string News();

 private:
  SaveCosts Costs() const;

  const int64_t every_steps_;
  double between_failures_seconds_;
  double restart_seconds_ = 0;
  double step_seconds_ = 0;
  double stall_seconds_ = 0;
  std::atomic<double> background_seconds_ = 0;
  int64_t saved_step_ = 0;
  int64_t announced_steps_ = 0;
};

}  // namespace weft::trainer
