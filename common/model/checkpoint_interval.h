#pragma once

#include <cstdint>

namespace weft {

/// Failures of one GPU, or one machine without, where none has been counted: 419 interruptions in
/// 54 days of 16,384 GPUs (The Llama 3 Herd of Models, 2024, arXiv 2407.21783, section 3.3.4).
inline constexpr double kDeviceHoursBetweenFailures = 50700;

/// However seldom machines fail, a job loses no more than this. Unit: seconds.
inline constexpr double kLongestSaveInterval = 3600;

/// What decides how often a job should save, in seconds; 0: not known.
struct SaveCosts {
  double stall_seconds = 0;       ///< Training waits for a save.
  double background_seconds = 0;  ///< Until another save may begin.
  double restart_seconds = 0;     ///< From a failure to training again.
  double between_failures_seconds = 0;
  double step_seconds = 0;
};

/// Seconds from the start of one save to the start of the next with which the largest share of time
/// goes to steps that are kept, when failures strike at random. With a period P, failures each
/// F seconds of work, R seconds to restart and a stall of S seconds that share is
/// (P - S) / (P + P/F (R + P/2)), which is largest at P = S + sqrt(S^2 + 2 (F + R) S). Close to
/// Young's sqrt(2 F S) (1974) where S and R are small.
double OptimalSavePeriod(double stall_seconds, double restart_seconds,
                         double between_failures_seconds);

/// Steps from one save to the next by that period, at least one; no more than fill
/// kLongestSaveInterval, and not fewer than a save takes in the background. 0: something is not
/// known.
int64_t StepsBetweenSaves(const SaveCosts& costs);

}  // namespace weft
