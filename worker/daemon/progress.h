#pragma once

#include "weft/v1/coordinator.pb.h"
#include "worker/trainer/control.h"

namespace weft::daemon {

/// The progress of an attempt as people see it, kept up to date with what its first rank says. Not
/// thread-safe.
class ProgressRecord {
 public:
  void Take(const trainer::ProgressMessage& message);
  void Take(const trainer::EvaluationMessage& message);
  /// Only a verified checkpoint counts.
  void Take(const trainer::CheckpointMessage& message);

  /// Share of the device's rate; only the worker knows that rate.
  void SetUtilization(double ratio) { progress_.set_utilization_ratio(ratio); }

  /// Moving average over steps; 0 before the first.
  double mean_step_seconds() const { return mean_step_seconds_; }
  const v1::Progress& message() const { return progress_; }

 private:
  v1::Progress progress_;
  double mean_step_seconds_ = 0;
};

}  // namespace weft::daemon
