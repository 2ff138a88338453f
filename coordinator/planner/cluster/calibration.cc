#include "coordinator/planner/cluster/calibration.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include "coordinator/planner/cluster/cholesky.h"

namespace weft::planner {
namespace {

// From here on a run whose prediction is off counts ever less.
constexpr double kOutlier = 0.06;
// Deviation of a run against that of a constant, in logarithms.
constexpr double kRunDeviation = 0.08;
constexpr double kConstantDeviation = 0.15;
constexpr int kIterations = 40;

// Calls visit(field, constant) for what is fitted: numbers, but for those that follow from what the
// program is.
template <class Stack, class Visitor>
void VisitConstants(Stack& stack, Visitor&& visit) {
  SoftwareStack::Fields(stack, [&](const Field& field, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
      if (field.name != "gradient_bytes" && field.name != "attention_share") visit(field, value);
    }
  });
}

Vector LogsOf(const SoftwareStack& stack) {
  Vector logs;
  VisitConstants(stack,
                 [&](const Field&, const double& value) { logs.push_back(std::log(value)); });
  return logs;
}

// Within the bounds of the fields; moves `logs` there.
SoftwareStack WithLogs(SoftwareStack stack, Vector& logs) {
  size_t i = 0;
  VisitConstants(stack, [&](const Field& field, double& value) {
    value = std::clamp(std::exp(logs[i]), field.min, field.max);
    logs[i++] = std::log(value);
  });
  return stack;
}

struct Fit {
  const std::vector<MeasuredRun>& runs;
  Vector prior;

  // Of the runs, then of the constants, each in units of its deviation.
  Vector Residuals(const SoftwareStack& stack, const Vector& logs) const {
    Vector residuals;
    for (const MeasuredRun& run : runs) {
      const Result<StepLedger> step =
          run.program ? PredictStep(run.device, WithConstants(*run.program, stack), run.run)
                      : PredictStep(run.device, stack, run.run);
      residuals.push_back(step.ok() ? std::log(step->Seconds() / run.seconds) / kRunDeviation : 0);
    }
    for (size_t i = 0; i < logs.size(); ++i) {
      residuals.push_back((logs[i] - prior[i]) / kConstantDeviation);
    }
    return residuals;
  }

  // The share with which each residual counts at its present size.
  Vector Weights(const Vector& residuals) const {
    Vector weights(residuals.size(), 1);
    for (size_t i = 0; i < runs.size(); ++i) weights[i] = 1 / (1 + Excess(residuals[i]));
    return weights;
  }

  double Cost(const Vector& residuals) const {
    constexpr double kLimit = kOutlier / kRunDeviation;
    double cost = 0;
    for (size_t i = 0; i < residuals.size(); ++i) {
      const double square = residuals[i] * residuals[i];
      cost += (i < runs.size() ? kLimit * kLimit * std::log1p(Excess(residuals[i])) : square) / 2;
    }
    return cost;
  }

  static double Excess(double residual) { return std::pow(residual * kRunDeviation / kOutlier, 2); }
};

}  // namespace

SoftwareStack WithConstants(SoftwareStack facts, const SoftwareStack& constants) {
  Vector logs = LogsOf(constants);
  return WithLogs(std::move(facts), logs);
}

SoftwareStack FitStack(const SoftwareStack& start, const std::vector<MeasuredRun>& runs) {
  Vector logs = LogsOf(start);
  const Fit fit{runs, logs};
  SoftwareStack stack = WithLogs(start, logs);
  Vector residuals = fit.Residuals(stack, logs);
  double cost = fit.Cost(residuals);
  double damping = 1e-3;
  const size_t n = logs.size();
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const Vector weights = fit.Weights(residuals);
    Matrix slopes;
    for (size_t j = 0; j < n; ++j) {
      constexpr double kStep = 1e-4;
      // Inwards from an upper bound, beyond which nothing changes.
      Vector moved = logs;
      moved[j] -= kStep;
      Vector clamped = moved;
      SoftwareStack nearby = WithLogs(start, clamped);
      double step = -kStep;
      if (clamped[j] != moved[j]) {
        moved[j] += 2 * kStep;
        nearby = WithLogs(start, moved);
        step = kStep;
      }
      Vector slope = fit.Residuals(nearby, moved);
      for (size_t i = 0; i < slope.size(); ++i) slope[i] = (slope[i] - residuals[i]) / step;
      slopes.push_back(std::move(slope));
    }
    Matrix normal(n, Vector(n, 0));
    Vector gradient(n, 0);
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < residuals.size(); ++i) {
        gradient[j] -= weights[i] * slopes[j][i] * residuals[i];
        for (size_t k = 0; k <= j; ++k) normal[j][k] += weights[i] * slopes[j][i] * slopes[k][i];
      }
      for (size_t k = 0; k < j; ++k) normal[k][j] = normal[j][k];
    }
    const double before = cost;
    while (damping < 1e8) {
      Matrix damped = normal;
      for (size_t j = 0; j < n; ++j) damped[j][j] *= 1 + damping;
      const Vector change = SolveSymmetric(damped, gradient);
      Vector trial = logs;
      for (size_t j = 0; j < n; ++j) trial[j] += std::clamp(change[j], -1.0, 1.0);
      const SoftwareStack candidate = WithLogs(start, trial);
      Vector trial_residuals = fit.Residuals(candidate, trial);
      const double trial_cost = fit.Cost(trial_residuals);
      if (trial_cost < cost) {
        logs = std::move(trial);
        stack = candidate;
        residuals = std::move(trial_residuals);
        cost = trial_cost;
        damping = std::max(damping / 5, 1e-9);
        break;
      }
      damping *= 4;
    }
    if (before - cost < 1e-9 * (1 + before)) break;
  }
  return stack;
}

}  // namespace weft::planner
