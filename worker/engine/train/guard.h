#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/spec/train_spec.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// Whether the update of a step may be made.
enum class StepVerdict {
  kSound,
  kSpike,      ///< The loss lies far above those before it.
  kNotFinite,  ///< The loss or a gradient is NaN or infinite.
};

/// The largest loss that is no spike after the losses of `window`; infinite while none is looked
/// for or before it holds guard.window losses.
double SpikeLimit(const GuardSpec& guard, std::span<const double> window);

/// Judges a step by its loss, summed over all ranks, and the losses of the sound steps before it.
/// No loss is a spike before `window` holds guard.window losses. Depends on nothing else, so all
/// ranks come to the same verdict.
StepVerdict JudgeStep(const GuardSpec& guard, std::span<const double> window, double loss,
                      bool finite_gradients);

/// Takes the loss of a sound step into the window, which stays empty when no spikes are looked for.
void RememberLoss(const GuardSpec& guard, double loss, std::vector<double>& window);

/// "9.3 is 12.1 standard deviations above 3.2, the mean of the last 100 steps".
std::string DescribeSpike(std::span<const double> window, double loss);

/// What follows from updates that were dropped.
enum class GuardAction {
  kGoOn,
  kRollBack,  ///< To the newest checkpoint, leaving out the data up to here.
  kGiveUp,    ///< All rollbacks are used up.
};
GuardAction AfterSkips(const GuardSpec& guard, int64_t skipped_in_a_row, int64_t rollbacks);

/// How training goes on from a checkpoint after the steps up to `bad` were given up: as the
/// checkpoint says, but with the data that comes after all that was read.
TrainCounters AfterRollback(const TrainCounters& bad, const TrainCounters& checkpoint);

}  // namespace weft::engine
