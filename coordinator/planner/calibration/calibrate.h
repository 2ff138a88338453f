#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/planner/calibration/calibration_report.h"
#include "coordinator/planner/calibration/timed_run.h"

namespace weft::planner {

/// Runs that count for a kind of machine: the newest.
inline constexpr size_t kMostRuns = 100;

/// Fits the constants of each kind of machine to the runs on it, newest first, and says how well
/// they predict: those runs, and runs that they were not fitted to (each run is predicted by a fit
/// to the others, without any that the planner does not tell from it; beyond kFolds runs, by a fit
/// without a part of that many). A fit is adopted when it is better than the defaults at the
/// latter. `in_use` is what machines have now, by MachineKind. Pure and deterministic; on `threads`
/// threads (0: as many as the machine runs); the result does not depend on their number.
CalibrationReport Calibrate(const std::vector<TimedRun>& runs,
                            const std::map<std::string, TimeCalibration>& in_use, int threads = 0);

inline constexpr size_t kFolds = 40;

}  // namespace weft::planner
