#pragma once

#include <type_traits>
#include <vector>

#include "coordinator/planner/calibration/timed_run.h"

namespace weft::planner {

/// A run whose step the planner can predict.
struct FitRun {
  RunForecast forecast;
  double step_seconds = 0;  ///< Measured; more than 0.
};

/// The constants of a machine fitted to runs on its kind: least squares of the logarithm of
/// predicted over measured step time, large errors counted by their logarithm, each constant within
/// the range of its field. A constant counts as a run of its own that says it is what the defaults
/// say, so that runs that say nothing about it leave it there, and few runs move none of them far.
/// Without runs: the defaults. `runs`, `error_ratio` and `shapes` are left to the caller.
TimeCalibration FitCalibration(const std::vector<const FitRun*>& runs);

/// Fits the time that these constants leave unexplained, by what the blocks of runs compute: for
/// TimeCalibration::shapes. A run says of its blocks as much as their products are of its step.
std::vector<MeasuredShape> FitShapes(const TimeCalibration& fitted,
                                     const std::vector<const FitRun*>& runs);

/// Calls visit(field, constant) for each of the constants that are fitted.
template <class Calibration, class Visitor>
void VisitConstants(Calibration& calibration, Visitor&& visit) {
  TimeCalibration::Fields(calibration, [&](const Field& field, auto& value) {
    if (field.name != "runs" && field.name != "error_ratio") {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) visit(field, value);
    }
  });
}

}  // namespace weft::planner
