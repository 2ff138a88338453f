#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/cluster/calibration.h"
#include "coordinator/planner/cluster/cholesky.h"

namespace weft::planner {

/// A run that may be measured, or was.
struct DoubtfulRun {
  BlockShape shape;
  double share = 1;      ///< Of its step, what its blocks take.
  bool refused = false;  ///< It cannot run: nothing is predicted of it.
};

/// How far the predictions of runs may be off: the cluster as a whole and kernels of each shape
/// (block_shapes.h). Measured seconds do not matter.
class RunsInDoubt {
 public:
  explicit RunsInDoubt(const std::vector<DoubtfulRun>& runs);

  /// Run `i` was measured so often.
  void Measure(size_t i, double times = 1);
  /// The unmeasured run from `first` on that takes most from the variance of all predictions from
  /// `first` on together (Cohn, Ghahramani and Jordan 1996); none where none takes any.
  std::optional<size_t> MostInformative(size_t first = 0) const;
  /// How far predictions from `first` on may be off: the root of their mean variance, in logarithms
  /// of seconds.
  double Deviation(size_t first = 0) const;

 private:
  Matrix covariances_;
  std::vector<bool> measured_;
};

/// Indices, ascending, of the `count` candidates to measure so that the others are predicted best:
/// one after the other the most informative one (RunsInDoubt). Measured seconds are not looked at.
/// Fewer where fewer can run.
std::vector<size_t> RunsToMeasure(const SoftwareStack& stack,
                                  const std::vector<MeasuredRun>& candidates, size_t count);

}  // namespace weft::planner
