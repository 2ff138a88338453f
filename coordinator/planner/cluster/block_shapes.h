#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/time_calibration.h"

namespace weft::planner {

/// What a block computes, as far as its kernels depend on it.
struct BlockShape {
  /// Width, tensor-parallel ranks, tokens of a micro-batch, sequence length; to base two.
  std::array<double, 4> logs = {};
  std::string kind;  ///< What else is to be the same: device, precision.

  BlockShape(int64_t width, int64_t tensor, int64_t tokens, int64_t sequence_length,
             std::string kind);
  bool operator==(const BlockShape&) const = default;
};

/// What a calibration says of a block, as a BlockShape.
BlockShape ToBlockShape(const MeasuredShape& block);

/// Covariance of the logarithms of measured over predicted seconds of blocks of these shapes.
double ShapeCovariance(const BlockShape& a, const BlockShape& b);

/// Variance of the same of runs of one shape among themselves.
double RunVariance();

/// A run that was measured.
struct ShapeSample {
  BlockShape shape;
  double deviation = 0;  ///< Logarithm of measured over predicted seconds of a step.
  double share = 1;      ///< Of them, those of blocks; above 0.
};

/// Runs of one shape.
struct WeighedShape {
  BlockShape shape;
  int64_t runs = 0;
  double weight = 0;  ///< What it counts for its neighbours.
};

/// What samples say of all shapes: the weights of a Gaussian process (Rasmussen and Williams 2006,
/// algorithm 2.1). Each shape once, in the order of the samples.
std::vector<WeighedShape> WeighShapes(const std::vector<ShapeSample>& samples);

/// What the measured shapes say of one.
struct NearShapes {
  double deviation = 0;  ///< Logarithm of what its blocks take over what is predicted.
  int64_t runs = 0;      ///< That say nearly all of it.
};
NearShapes NearShapesOf(const BlockShape& shape, const std::vector<WeighedShape>& measured);

}  // namespace weft::planner
