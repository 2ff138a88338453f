#include "coordinator/planner/calibration/fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/cluster/robust_fit.h"

namespace weft::planner {
namespace {

// Deviation of a run in logarithms, and from where on it counts ever less.
constexpr double kRunDeviation = 0.08;
constexpr double kOutlier = 0.16;

/// How far constants of machines lie from the defaults, in logarithms.
double Deviation(std::string_view name) {
  static const std::map<std::string_view, double> deviations = {
      {"small_products", 0.3},    {"large_products", 0.2}, {"half_products", 0.2},
      {"attention_share", 0.5},   {"memory_share", 0.5},   {"update_share", 0.5},
      {"host_link_share", 0.6},   {"link_share", 0.6},     {"message_seconds", 0.8},
      {"operation_seconds", 0.8}, {"step_seconds", 0.7},   {"beside_share", 0.25}};
  return deviations.at(name);
}

/// What may be 0 is fitted with this much more of it.
double Offset(const Field& field) {
  constexpr double kStep = 1e-3;
  return field.min > 0 ? 0 : kStep;
}

Vector LogsOf(const TimeCalibration& calibration) {
  Vector logs;
  VisitConstants(calibration, [&](const Field& field, const double& value) {
    logs.push_back(std::log(value + Offset(field)));
  });
  return logs;
}

TimeCalibration FromLogs(const Vector& logs) {
  TimeCalibration calibration;
  size_t i = 0;
  VisitConstants(calibration, [&](const Field& field, double& value) {
    value = std::clamp(std::exp(logs[i++]) - Offset(field), field.min, field.max);
  });
  return calibration;
}

void Bound(Vector& logs) {
  TimeCalibration calibration;
  size_t i = 0;
  VisitConstants(calibration, [&](const Field& field, double&) {
    const double offset = Offset(field);
    logs[i] = std::clamp(logs[i], std::log(field.min + offset), std::log(field.max + offset));
    ++i;
  });
}

/// By how many percent a step is longer whose products are one percent longer.
double ShareOfProducts(const RunForecast& forecast, const TimeCalibration& fitted) {
  constexpr double kLonger = 1.01;
  TimeCalibration longer = fitted;
  longer.small_products /= kLonger;
  longer.large_products /= kLonger;
  return std::log(StepSeconds(forecast.Step(longer)) / StepSeconds(forecast.Step(fitted))) /
         std::log(kLonger);
}

}  // namespace

std::vector<MeasuredShape> FitShapes(const TimeCalibration& fitted,
                                     const std::vector<const FitRun*>& runs) {
  // A share of nothing would be divided by.
  constexpr double kLeastShare = 0.01;
  std::vector<MeasuredShape> blocks;
  std::vector<ShapeSample> samples;
  for (const FitRun* run : runs) {
    blocks.push_back(run->forecast.Block());
    const double predicted = StepSeconds(run->forecast.Step(fitted));
    samples.push_back({.shape = ToBlockShape(blocks.back()),
                       .deviation = std::log(run->step_seconds / predicted),
                       .share = std::max(ShareOfProducts(run->forecast, fitted), kLeastShare)});
  }
  std::vector<MeasuredShape> shapes;
  for (const WeighedShape& each : WeighShapes(samples)) {
    const auto sample = std::find_if(samples.begin(), samples.end(), [&](const ShapeSample& own) {
      return own.shape == each.shape;
    });
    shapes.push_back(blocks[static_cast<size_t>(sample - samples.begin())]);
    shapes.back().runs = each.runs;
    shapes.back().weight = each.weight;
  }
  return shapes;
}

TimeCalibration FitCalibration(const std::vector<const FitRun*>& runs) {
  const Vector prior = LogsOf({});
  Vector deviations;
  const TimeCalibration defaults;
  VisitConstants(defaults, [&](const Field& field, const double&) {
    deviations.push_back(Deviation(field.name));
  });
  FitProblem problem;
  problem.bound = Bound;
  problem.robust = runs.size();
  problem.outlier = kOutlier / kRunDeviation;
  problem.residuals = [&](const Vector& logs) {
    const TimeCalibration calibration = FromLogs(logs);
    Vector residuals;
    for (const FitRun* run : runs) {
      const double predicted = StepSeconds(run->forecast.Step(calibration));
      residuals.push_back(std::log(predicted / run->step_seconds) / kRunDeviation);
    }
    for (size_t i = 0; i < logs.size(); ++i) {
      residuals.push_back((logs[i] - prior[i]) / deviations[i]);
    }
    return residuals;
  };
  if (runs.empty()) return {};
  return FromLogs(RobustFit(problem, prior));
}

}  // namespace weft::planner
