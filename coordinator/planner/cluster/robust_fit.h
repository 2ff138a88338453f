#pragma once

#include <cstddef>
#include <functional>

#include "coordinator/planner/cluster/cholesky.h"

namespace weft::planner {

/// Numbers that minimise some function.
struct FitProblem {
  /// Moves a point to where it may be.
  std::function<void(Vector&)> bound;
  /// The residuals at a point within the bounds, each in units of its deviation.
  std::function<Vector(const Vector&)> residuals;
  /// This many of them, the first ones, count ever less where they are beyond `outlier`.
  size_t robust = 0;
  double outlier = 1;
};

/// The point of least squares that is reached from `start`, with large robust residuals counted by
/// their logarithm (Cauchy's loss), by Levenberg and Marquardt's method with slopes from
/// differences. Deterministic.
Vector RobustFit(const FitProblem& problem, Vector start);

}  // namespace weft::planner
