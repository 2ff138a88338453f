#pragma once

#include <cstddef>
#include <cstdint>

#include "common/spec/job_spec.h"
#include "weft/v1/coordinator.pb.h"
#include "worker/trainer/control.h"

namespace weft::daemon {

/// What surrounds a phase in its job; nothing in a job without phases.
struct PhasePlace {
  int64_t steps_before = 0;
  int64_t tokens_before = 0;
  int64_t steps_after = 0;
  double work_after = 0;  ///< In steps of this phase with as many FLOPs.
};

/// Without tokens_before, which the summaries of the phases before say.
PhasePlace PlaceOfPhase(const JobSpec& job, size_t phase);

/// The progress of a job as people see it, kept up to date with what the first rank of its attempt
/// says. Ranks count the steps of their phase, this those of the whole job. Not thread-safe.
class ProgressRecord {
 public:
  ProgressRecord() = default;
  explicit ProgressRecord(const PhasePlace& place) : place_(place) {}

  /// The checkpoint that the attempt goes on from is the newest one that is whole.
  void Take(const trainer::StartedMessage& message);
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
  PhasePlace place_;
  v1::Progress progress_;
  double mean_step_seconds_ = 0;
};

}  // namespace weft::daemon
