#pragma once

#include <optional>
#include <vector>

#include "coordinator/planner/cluster/step_model.h"

namespace weft::planner {

/// A run whose step was timed.
struct MeasuredRun {
  AcceleratorSpec device;
  ClusterRun run;
  double seconds = 0;
  /// How its program works, where that is not as the stack says that is fitted: all but the eight
  /// constants.
  std::optional<SoftwareStack> program = {};
};

/// How the program of `facts` works, with the eight constants of `constants`.
SoftwareStack WithConstants(SoftwareStack facts, const SoftwareStack& constants);

/// Fits the eight constants of a stack to measured steps: least squares of the logarithm of
/// predicted over measured, large errors counted linearly (Huber 1964), by Levenberg and
/// Marquardt's method on logarithms of the constants, within the ranges of their fields. Constants
/// that the runs say little of stay near where they were: each counts as one more run, whose
/// deviation is twice that of the others. Runs that PredictStep refuses are left out.
SoftwareStack FitStack(const SoftwareStack& start, const std::vector<MeasuredRun>& runs);

}  // namespace weft::planner
