#include "coordinator/planner/cluster/runs_to_measure.h"

#include <algorithm>
#include <numeric>

#include "coordinator/planner/cluster/cholesky.h"
#include "coordinator/planner/cluster/nearby_runs.h"

namespace weft::planner {
namespace {

// By how much all runs of a cluster may be off together, in logarithms. The constants one by one
// would ask for runs that are unlike all others.
constexpr double kClusterDeviation = 0.15;

/// Of the logarithms of measured over predicted seconds, before anything is measured; zeros for
/// runs that are refused.
Matrix Covariances(const SoftwareStack& stack, const std::vector<MeasuredRun>& runs) {
  std::vector<NearbyRuns::Shape> shapes;
  std::vector<bool> refused;
  for (const MeasuredRun& run : runs) {
    shapes.push_back(NearbyRuns::ShapeOf(run.device, run.run));
    refused.push_back(!PredictStep(run.device, run.program.value_or(stack), run.run).ok());
  }
  Matrix covariances(runs.size(), Vector(runs.size(), 0));
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j <= i; ++j) {
      if (refused[i] || refused[j]) continue;
      covariances[i][j] = covariances[j][i] =
          kClusterDeviation * kClusterDeviation + NearbyRuns::Covariance(shapes[i], shapes[j]);
    }
  }
  return covariances;
}

}  // namespace

std::vector<size_t> RunsToMeasure(const SoftwareStack& stack,
                                  const std::vector<MeasuredRun>& candidates, size_t count) {
  Matrix open = Covariances(stack, candidates);
  const size_t n = candidates.size();
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    size_t best = n;
    double most = 0;
    for (size_t i = 0; i < n; ++i) {
      if (std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      const double taken = std::inner_product(open[i].begin(), open[i].end(), open[i].begin(), 0.0);
      const double gain = taken / (open[i][i] + NearbyRuns::RunVariance());
      if (gain > most) {
        best = i;
        most = gain;
      }
    }
    if (best == n) break;
    chosen.push_back(best);
    const Vector row = open[best];
    const double variance = row[best] + NearbyRuns::RunVariance();
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) open[i][j] -= row[i] * row[j] / variance;
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace weft::planner
