#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "coordinator/planner/cluster/calibration.h"

namespace weft::planner {

/// What measured steps say of those of runs near them, beyond the constants fitted to them. Kernels
/// of some shapes are faster or slower than their neighbours, by a fifth or so and the same in
/// every plan that uses them, which no smooth model can know. So what a fitted stack leaves
/// unexplained is carried over to runs whose blocks compute on nearly the same shapes: a Gaussian
/// process (Rasmussen and Williams 2006, algorithm 2.1) over the logarithms of width,
/// tensor-parallel ranks, tokens of a micro-batch and sequence length.
class NearbyRuns {
 public:
  /// Runs on one cluster and their program's constants, as FitStack found them. Runs that
  /// PredictStep refuses are left out.
  NearbyRuns(const SoftwareStack& fitted, const std::vector<MeasuredRun>& runs);

  /// Measured over predicted seconds to expect of `run`: 1 where nothing near was measured.
  double Factor(const AcceleratorSpec& device, const ClusterRun& run) const;

  /// Of what a block computes.
  struct Shape {
    std::array<double, 4> logs = {};  ///< To base two.
    std::string kind;                 ///< Accelerator, precision and recomputation.

    bool operator==(const Shape&) const = default;
  };
  static Shape ShapeOf(const AcceleratorSpec& device, const ClusterRun& run);
  /// Of the logarithms of measured over predicted seconds of runs of these shapes.
  static double Covariance(const Shape& a, const Shape& b);
  /// Variance of that of runs of the same shape among themselves.
  static double RunVariance();

 private:
  /// Runs of the same shape.
  struct Measured {
    Shape shape;
    double weight = 0;  ///< What it counts for its neighbours.
  };

  std::vector<Measured> measured_;
};

}  // namespace weft::planner
