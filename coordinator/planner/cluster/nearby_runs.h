#pragma once

#include <vector>

#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/cluster/calibration.h"

namespace weft::planner {

/// What measured steps say of those of runs near them, beyond the constants fitted to them. Kernels
/// of some shapes are faster or slower than their neighbours, by a fifth or so and the same in
/// every plan that uses them, which no smooth model can know. So what a fitted stack leaves
/// unexplained is carried over to runs whose blocks compute on nearly the same shapes
/// (block_shapes.h).
class NearbyRuns {
 public:
  /// Runs on one cluster and their program's constants, as FitStack found them. Runs that
  /// PredictStep refuses are left out.
  NearbyRuns(const SoftwareStack& fitted, const std::vector<MeasuredRun>& runs);

  /// Measured over predicted seconds to expect of `run`: 1 where nothing near was measured.
  double Factor(const AcceleratorSpec& device, const ClusterRun& run) const;

  /// The shapes that its blocks compute with; alike are accelerator, precision, recomputation and
  /// experts.
  static BlockShape ShapeOf(const AcceleratorSpec& device, const ClusterRun& run);

 private:
  std::vector<WeighedShape> measured_;
};

}  // namespace weft::planner
