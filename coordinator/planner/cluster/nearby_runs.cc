#include "coordinator/planner/cluster/nearby_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/planner/cluster/cholesky.h"

namespace weft::planner {
namespace {

// Deviation of kernels of one shape from the model, in logarithms, and how far it reaches:
// libraries choose kernels by the sizes, and half an octave further they have chosen another.
constexpr double kShapeDeviation = 0.1;
constexpr double kReach = 0.5;  // octaves
// Of runs of the same shape among themselves.
constexpr double kRunDeviation = 0.04;
// Runs that are off by more than this say ever less: rather than their kernels, something disturbed
// them.
constexpr double kOutlier = 0.12;

std::string_view NameOf(Recomputation recomputation) {
  if (recomputation == Recomputation::kBlock) return "blocks";
  return recomputation == Recomputation::kAttention ? "attention" : "none";
}

double Log2(int64_t value) {
  return std::log2(static_cast<double>(value));
}

}  // namespace

NearbyRuns::NearbyRuns(const SoftwareStack& fitted, const std::vector<MeasuredRun>& runs) {
  struct Sums {
    double count = 0, deviation = 0, excess = 0;
  };
  std::vector<Sums> sums;
  for (const MeasuredRun& each : runs) {
    const SoftwareStack stack = each.program ? WithConstants(*each.program, fitted) : fitted;
    const Result<StepLedger> step = PredictStep(each.device, stack, each.run);
    if (!step.ok()) continue;
    const double deviation = std::log(each.seconds / step->Seconds());
    const Shape shape = ShapeOf(each.device, each.run);
    const auto same = std::find_if(measured_.begin(), measured_.end(),
                                   [&](const Measured& known) { return known.shape == shape; });
    const auto i = static_cast<size_t>(same - measured_.begin());
    if (same == measured_.end()) {
      measured_.push_back({.shape = shape});
      sums.emplace_back();
    }
    sums[i].count += 1;
    sums[i].deviation += deviation;
    sums[i].excess += std::pow(deviation / kOutlier, 2);
  }

  const size_t n = measured_.size();
  Matrix covariances(n, Vector(n));
  Vector deviations(n);
  for (size_t i = 0; i < n; ++i) {
    const double noise = kRunDeviation * kRunDeviation * (1 + sums[i].excess / sums[i].count);
    deviations[i] = sums[i].deviation / sums[i].count;
    for (size_t j = 0; j < n; ++j) {
      covariances[i][j] = Covariance(measured_[i].shape, measured_[j].shape);
    }
    covariances[i][i] += noise / sums[i].count;
  }
  const Vector weights = SolveSymmetric(std::move(covariances), std::move(deviations));
  for (size_t i = 0; i < n; ++i) measured_[i].weight = weights[i];
}

double NearbyRuns::Factor(const AcceleratorSpec& device, const ClusterRun& run) const {
  const Shape shape = ShapeOf(device, run);
  double deviation = 0;
  for (const Measured& known : measured_) {
    deviation += known.weight * Covariance(shape, known.shape);
  }
  return std::exp(deviation);
}

NearbyRuns::Shape NearbyRuns::ShapeOf(const AcceleratorSpec& device, const ClusterRun& run) {
  const int64_t tokens = run.micro_batch * run.model.sequence_length / run.context;
  return {.logs = {Log2(run.model.width), Log2(run.tensor), Log2(tokens),
                   Log2(run.model.sequence_length)},
          .kind = device.name + " " + run.precision + " " + std::string(NameOf(run.recomputation)) +
                  " " + std::to_string(run.model.experts)};
}

double NearbyRuns::Covariance(const Shape& a, const Shape& b) {
  if (a.kind != b.kind) return 0;
  double distance = 0;
  for (size_t i = 0; i < a.logs.size(); ++i) distance += std::pow(a.logs[i] - b.logs[i], 2);
  return kShapeDeviation * kShapeDeviation * std::exp(-distance / (2 * kReach * kReach));
}

double NearbyRuns::RunVariance() {
  return kRunDeviation * kRunDeviation;
}

}  // namespace weft::planner
