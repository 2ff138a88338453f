#include "coordinator/planner/cluster/runs_to_measure.h"

#include <algorithm>
#include <cmath>

#include "coordinator/planner/cluster/nearby_runs.h"

namespace weft::planner {
namespace {

// By how much all runs of a cluster may be off together, in logarithms. The constants one by one
// would ask for runs that are unlike all others.
constexpr double kClusterDeviation = 0.15;

}  // namespace

RunsInDoubt::RunsInDoubt(const std::vector<DoubtfulRun>& runs)
    : covariances_(runs.size(), Vector(runs.size(), 0)), measured_(runs.size(), false) {
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j <= i; ++j) {
      if (runs[i].refused || runs[j].refused) continue;
      covariances_[i][j] = covariances_[j][i] =
          kClusterDeviation * kClusterDeviation +
          runs[i].share * runs[j].share * ShapeCovariance(runs[i].shape, runs[j].shape);
    }
  }
}

void RunsInDoubt::Measure(size_t run, double times) {
  measured_[run] = true;
  const Vector row = covariances_[run];
  const double variance = row[run] + RunVariance() / times;
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) covariances_[i][j] -= row[i] * row[j] / variance;
  }
}

std::optional<size_t> RunsInDoubt::MostInformative(size_t first) const {
  std::optional<size_t> best;
  double most = 0;
  for (size_t i = first; i < covariances_.size(); ++i) {
    if (measured_[i]) continue;
    double taken = 0;
    for (size_t j = first; j < covariances_.size(); ++j) {
      taken += covariances_[i][j] * covariances_[i][j];
    }
    const double gain = taken / (covariances_[i][i] + RunVariance());
    if (gain > most) {
      best = i;
      most = gain;
    }
  }
  return best;
}

double RunsInDoubt::Deviation(size_t first) const {
  double sum = 0;
  for (size_t i = first; i < covariances_.size(); ++i) sum += std::max(covariances_[i][i], 0.0);
  const size_t count = covariances_.size() - first;
  return count > 0 ? std::sqrt(sum / static_cast<double>(count)) : 0;
}

std::vector<size_t> RunsToMeasure(const SoftwareStack& stack,
                                  const std::vector<MeasuredRun>& candidates, size_t count) {
  std::vector<DoubtfulRun> runs;
  for (const MeasuredRun& each : candidates) {
    runs.push_back(
        {.shape = NearbyRuns::ShapeOf(each.device, each.run),
         .refused = !PredictStep(each.device, each.program.value_or(stack), each.run).ok()});
  }
  RunsInDoubt doubt(runs);
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    const std::optional<size_t> next = doubt.MostInformative();
    if (!next) break;
    chosen.push_back(*next);
    doubt.Measure(*next);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace weft::planner
