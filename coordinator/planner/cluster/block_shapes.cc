#include "coordinator/planner/cluster/block_shapes.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/planner/cluster/cholesky.h"

namespace weft::planner {
namespace {

// Deviation of kernels of one shape from the model, in logarithms, and how far it reaches:
// libraries choose kernels by the sizes, and half an octave further they have chosen another.
constexpr double kShapeDeviation = 0.1;
constexpr double kReach = 0.5;  // octaves
// Deviation of runs of the same shape among themselves.
constexpr double kRunDeviation = 0.04;
// Runs that are off by more than this say ever less: rather than their kernels, something disturbed
// them.
constexpr double kOutlier = 0.12;
// Correlation from which on runs are near.
constexpr double kNear = 0.1;

double Log2(int64_t value) {
  return std::log2(static_cast<double>(value));
}

}  // namespace

BlockShape::BlockShape(int64_t width, int64_t tensor, int64_t tokens, int64_t sequence_length,
                       std::string own_kind)
    : logs({Log2(width), Log2(tensor), Log2(tokens), Log2(sequence_length)}),
      kind(std::move(own_kind)) {}

BlockShape ToBlockShape(const MeasuredShape& block) {
  return {block.width, block.tensor, block.tokens, block.sequence_length,
          block.products + " " + std::to_string(block.experts)};
}

double ShapeCovariance(const BlockShape& a, const BlockShape& b) {
  if (a.kind != b.kind) return 0;
  double distance = 0;
  for (size_t i = 0; i < a.logs.size(); ++i) distance += std::pow(a.logs[i] - b.logs[i], 2);
  return kShapeDeviation * kShapeDeviation * std::exp(-distance / (2 * kReach * kReach));
}

double RunVariance() {
  return kRunDeviation * kRunDeviation;
}

std::vector<WeighedShape> WeighShapes(const std::vector<ShapeSample>& samples) {
  // Steps say of their blocks by the share that these have of them: by its square.
  struct Sums {
    double said = 0, deviation = 0, excess = 0;
  };
  std::vector<WeighedShape> measured;
  std::vector<Sums> sums;
  for (const ShapeSample& sample : samples) {
    const auto same =
        std::find_if(measured.begin(), measured.end(),
                     [&](const WeighedShape& known) { return known.shape == sample.shape; });
    const auto i = static_cast<size_t>(same - measured.begin());
    if (same == measured.end()) {
      measured.push_back({.shape = sample.shape});
      sums.emplace_back();
    }
    ++measured[i].runs;
    sums[i].said += sample.share * sample.share;
    sums[i].deviation += sample.share * sample.deviation;
    sums[i].excess += std::pow(sample.deviation / kOutlier, 2);
  }
  const size_t n = measured.size();
  Matrix covariances(n, Vector(n));
  Vector deviations(n);
  for (size_t i = 0; i < n; ++i) {
    const double excess = sums[i].excess / static_cast<double>(measured[i].runs);
    deviations[i] = sums[i].deviation / sums[i].said;
    for (size_t j = 0; j < n; ++j) {
      covariances[i][j] = ShapeCovariance(measured[i].shape, measured[j].shape);
    }
    covariances[i][i] += RunVariance() * (1 + excess) / sums[i].said;
  }
  const Vector weights = SolveSymmetric(std::move(covariances), std::move(deviations));
  for (size_t i = 0; i < n; ++i) measured[i].weight = weights[i];
  return measured;
}

NearShapes NearShapesOf(const BlockShape& shape, const std::vector<WeighedShape>& measured) {
  NearShapes near;
  for (const WeighedShape& known : measured) {
    const double covariance = ShapeCovariance(shape, known.shape);
    near.deviation += known.weight * covariance;
    if (covariance >= kNear * kShapeDeviation * kShapeDeviation) near.runs += known.runs;
  }
  return near;
}

}  // namespace weft::planner
