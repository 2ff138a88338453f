#include "coordinator/planner/calibration/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "coordinator/planner/calibration/fit.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/plan_text.h"

namespace weft::planner {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ErrorSummary Summarize(const std::vector<RunError>& runs, double RunError::*predicted) {
  std::vector<double> errors, ratios;
  for (const RunError& run : runs) {
    ratios.push_back(run.*predicted / run.measured_seconds);
    errors.push_back(std::fabs(ratios.back() - 1));
  }
  ErrorSummary summary;
  if (errors.empty()) return summary;
  for (double error : errors) summary.mean += error / static_cast<double>(errors.size());
  summary.median = Median(errors);
  summary.bias = Median(ratios) - 1;
  std::sort(errors.begin(), errors.end());
  const double rank = std::ceil(0.9 * static_cast<double>(errors.size()));
  summary.percentile_90 = errors[static_cast<size_t>(rank) - 1];
  return summary;
}

std::string What(const TimedRun& run) {
  const ModelSpec& model = run.job.model;
  const Plan& plan = run.plan;
  std::string text = model.family + " " + std::to_string(model.layers) + " x " +
                     std::to_string(model.width) + ", " + plan.precision + ", " + MeshText(plan) +
                     ", " + std::to_string(plan.threads_per_rank) +
                     (plan.threads_per_rank == 1 ? " thread" : " threads");
  if (plan.accumulation_steps > 1) {
    text += ", " + std::to_string(plan.accumulation_steps) + " passes";
  }
  if (!plan.recompute_schedule.empty()) {
    text += ", schedule";
  } else if (BlocksWith(plan, "recompute") > 0) {
    text += ", recomputes blocks";
  } else if (BlocksWith(plan, "attention") > 0) {
    text += ", recomputes attention";
  }
  if (plan.activation_bits > 0) text += ", " + std::to_string(plan.activation_bits) + " bits";
  return text;
}

/// What the planner cannot tell apart is one thing that was measured several times.
std::vector<size_t> GroupsOf(const std::vector<RunError>& runs) {
  std::map<double, size_t> groups;
  std::vector<size_t> group_of;
  for (const RunError& run : runs) {
    group_of.push_back(groups.try_emplace(run.defaults_seconds, groups.size()).first->second);
  }
  return group_of;
}

void PredictHeldOut(const std::vector<FitRun>& runs, int threads, std::vector<RunError>& errors) {
  const std::vector<size_t> groups = GroupsOf(errors);
  const size_t folds = std::min(kFolds, *std::max_element(groups.begin(), groups.end()) + 1);
  OnThreads(threads, folds, [&](size_t fold) {
    std::vector<const FitRun*> others;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (groups[i] % folds != fold) others.push_back(&runs[i]);
    }
    const TimeCalibration fitted = FitCalibration(others);
    TimeCalibration near = fitted;
    near.shapes = FitShapes(fitted, others);
    for (size_t i = 0; i < runs.size(); ++i) {
      if (groups[i] % folds != fold) continue;
      errors[i].held_out_seconds = StepSeconds(runs[i].forecast.Step(fitted));
      errors[i].near_seconds = StepSeconds(runs[i].forecast.Step(near));
    }
    return true;
  });
}

std::vector<FittedConstant> ConstantsOf(const TimeCalibration& before,
                                        const TimeCalibration& after) {
  std::vector<FittedConstant> constants;
  VisitConstants(before, [&](const Field& field, const double& value) {
    constants.push_back(
        {std::string(field.name), std::string(field.unit), value, 0, field.min, field.max});
  });
  size_t i = 0;
  VisitConstants(after, [&](const Field&, const double& value) { constants[i++].after = value; });
  return constants;
}

std::string Verdict(const MachineReport& report) {
  if (report.runs.size() == 1) return "not adopted: one run says nothing of others";
  char text[96];
  std::snprintf(text, sizeof(text), "%.1f %% instead of %.1f %% median error at runs not seen",
                100 * report.calibration.error_ratio, 100 * report.defaults.median);
  return (report.adopted ? "adopted: " : "not adopted, the defaults stay: ") + std::string(text) +
         (report.calibration.shapes.empty()
              ? ""
              : ", with what constants leave unexplained of runs near");
}

MachineReport CalibrateMachine(const std::string& machine, const std::vector<const TimedRun*>& runs,
                               const TimeCalibration& in_use, int threads) {
  MachineReport report;
  report.machine = machine;
  std::vector<FitRun> fit;
  for (const TimedRun* run : runs) {
    fit.push_back({RunForecast::Of(*run).value(), run->step_seconds});
    RunError error;
    error.run = run->id;
    error.what = What(*run);
    error.measured_seconds = run->step_seconds;
    error.planned_seconds = run->plan.prediction.step_seconds;
    error.timed_steps = run->timed_steps;
    error.memory_bytes = run->memory_bytes;
    const MemoryBreakdown& memory = run->plan.prediction.memory_per_rank;
    error.planned_memory_bytes = TotalBytes(memory) - memory.snapshots_bytes - memory.runtime_bytes;
    error.defaults_seconds = StepSeconds(fit.back().forecast.Step({}));
    error.before_seconds = StepSeconds(fit.back().forecast.Step(in_use));
    report.runs.push_back(std::move(error));
  }
  PredictHeldOut(fit, threads, report.runs);
  std::vector<const FitRun*> all;
  for (const FitRun& run : fit) all.push_back(&run);
  report.calibration = FitCalibration(all);
  report.defaults = Summarize(report.runs, &RunError::defaults_seconds);
  report.before = Summarize(report.runs, &RunError::before_seconds);
  report.held_out = Summarize(report.runs, &RunError::held_out_seconds);
  report.near = Summarize(report.runs, &RunError::near_seconds);
  report.calibration.runs = std::ssize(fit);
  report.calibration.error_ratio = report.held_out.median;
  if (report.near.median < report.held_out.median && report.near.mean < report.held_out.mean) {
    report.calibration.shapes = FitShapes(report.calibration, all);
    report.calibration.error_ratio = report.near.median;
  }
  for (size_t i = 0; i < fit.size(); ++i) {
    report.runs[i].after_seconds = StepSeconds(fit[i].forecast.Step(report.calibration));
  }
  report.after = Summarize(report.runs, &RunError::after_seconds);
  report.constants = ConstantsOf(in_use, report.calibration);
  report.adopted = report.calibration.error_ratio < report.defaults.median;
  report.verdict = Verdict(report);
  return report;
}

}  // namespace

CalibrationReport Calibrate(const std::vector<TimedRun>& runs,
                            const std::map<std::string, TimeCalibration>& in_use, int threads) {
  if (threads == 0) threads = ThreadsOfMachine();
  CalibrationReport report;
  std::map<std::string, std::vector<const TimedRun*>> kinds;
  for (const TimedRun& run : runs) {
    std::string why = WhyLeftOut(run);
    if (why.empty()) {
      auto& of_kind = kinds[MachineKind(run.machines.front())];
      if (of_kind.size() < kMostRuns) {
        of_kind.push_back(&run);
        continue;
      }
      why = "it is older than the newest " + std::to_string(kMostRuns);
    }
    report.left_out.push_back({run.id, std::move(why)});
  }
  for (const auto& [machine, of_kind] : kinds) {
    const auto known = in_use.find(machine);
    report.machines.push_back(CalibrateMachine(
        machine, of_kind, known == in_use.end() ? TimeCalibration{} : known->second, threads));
  }
  return report;
}

}  // namespace weft::planner
