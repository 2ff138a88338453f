#include "coordinator/planner/cluster/calibration.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include "coordinator/planner/cluster/robust_fit.h"

namespace weft::planner {
namespace {

// From here on a run whose prediction is off counts ever less.
constexpr double kOutlier = 0.06;
// Deviation of a run against that of a constant, in logarithms.
constexpr double kRunDeviation = 0.08;
constexpr double kConstantDeviation = 0.15;

// Calls visit(field, constant) for what is fitted: numbers, except those that follow from what the
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

/// Residuals of the runs, then of the constants, each in units of its deviation.
Vector Residuals(const std::vector<MeasuredRun>& runs, const SoftwareStack& stack,
                 const Vector& logs, const Vector& prior) {
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

}  // namespace

SoftwareStack WithConstants(SoftwareStack facts, const SoftwareStack& constants) {
  Vector logs = LogsOf(constants);
  return WithLogs(std::move(facts), logs);
}

SoftwareStack FitStack(const SoftwareStack& start, const std::vector<MeasuredRun>& runs) {
  const Vector prior = LogsOf(start);
  FitProblem problem;
  problem.bound = [&](Vector& logs) { (void)WithLogs(start, logs); };
  problem.residuals = [&](const Vector& logs) {
    Vector within = logs;
    return Residuals(runs, WithLogs(start, within), logs, prior);
  };
  problem.robust = runs.size();
  problem.outlier = kOutlier / kRunDeviation;
  Vector logs = RobustFit(problem, prior);
  return WithLogs(start, logs);
}

}  // namespace weft::planner
