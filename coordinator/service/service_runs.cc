#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "common/log.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/calibration/calibrate.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Looked at to calibrate; each kind of machine takes the newest planner::kMostRuns of its own.
constexpr int64_t kRunsRead = 1000;

/// Weight of the newest run in what is known of the errors of predictions.
constexpr double kErrorMemory = 0.1;
/// Older runs weigh less than a thousandth in that.
constexpr int64_t kErrorRuns = 64;

double NumberAt(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

/// What rank 0 of the attempt said at its end (RunSummary of the trainer), if it is that.
std::optional<Json> SummaryOf(const std::string& json, int64_t epoch) {
  Result<Json> summary = ParseJson(json);
  if (json.empty() || !summary.ok() || !summary->is_object()) return std::nullopt;
  if (NumberAt(*summary, "epoch") != static_cast<double>(epoch)) return std::nullopt;
  return std::move(*summary);
}

/// Bytes that the accounts of a rank hold; the process itself is not in them, nor are snapshots.
int64_t AccountedBytes(const MemoryBreakdown& memory) {
  return TotalBytes(memory) - memory.snapshots_bytes - memory.runtime_bytes;
}

planner::TimedRun ToTimedRun(RunRecord record) {
  planner::TimedRun run;
  run.id = record.job_id + (record.epoch > 1 ? " #" + std::to_string(record.epoch) : "");
  run.job = std::move(record.spec);
  run.plan = std::move(record.plan);
  run.machines = std::move(record.machines);
  run.step_seconds = record.step_seconds;
  run.timed_steps = record.timed_steps;
  run.memory_bytes = record.memory_bytes;
  return run;
}

/// The error of a prediction as a part of what was measured.
double ErrorRatio(double measured, double predicted) {
  return std::fabs(measured - predicted) / measured;
}

}  // namespace

std::optional<RunRecord> Service::RunOf(const LiveJob& live, const AttemptRecord& attempt,
                                        const std::string& summary_json) const {
  // What was measured of several numbers of ranks says nothing of a plan for one.
  if (attempt.membership > 1) return std::nullopt;
  RunRecord run;
  run.job_id = attempt.job_id;
  run.epoch = attempt.epoch;
  run.ended_at = attempt.ended_at.value_or(0);
  if (const std::optional<Json> summary = SummaryOf(summary_json, attempt.epoch)) {
    run.step_seconds = NumberAt(*summary, "median_step_seconds");
    run.timed_steps = static_cast<int64_t>(NumberAt(*summary, "timed_steps"));
    if (const auto peak = summary->find("memory_peak"); peak != summary->end()) {
      const Result<MemoryBreakdown> memory = FromJson<MemoryBreakdown>(*peak);
      if (memory.ok()) run.memory_bytes = AccountedBytes(*memory);
    }
  } else {
    // One that did not get to its end: what heartbeats reported of it.
    run.step_seconds = live.steps.MedianSeconds();
    run.timed_steps = live.steps.reports();
  }
  if (!std::isfinite(run.step_seconds) || run.step_seconds <= 0) return std::nullopt;
  const std::set<std::string> names(attempt.plan.rank_workers.begin(),
                                    attempt.plan.rank_workers.end());
  for (const std::string& name : names) {
    const auto session = sessions_.find(name);
    // After a restart of this process a worker is known by its name until it attaches.
    if (session == sessions_.end() || session->second.incarnation.empty()) return std::nullopt;
    run.machines.push_back(session->second.profile);
  }
  return run;
}

void Service::CountRun(const RunRecord& run) {
  const Prediction& prediction = live_.at(run.job_id)->current.attempt->plan.prediction;
  if (prediction.step_seconds > 0) {
    const double wrong = ErrorRatio(run.step_seconds, prediction.step_seconds);
    metrics_.PlanStepTimeError(wrong);
    LearnPredictionError(wrong);
  }
  if (run.memory_bytes > 0) {
    metrics_.PlanMemoryError(
        ErrorRatio(static_cast<double>(run.memory_bytes),
                   static_cast<double>(AccountedBytes(prediction.memory_per_rank))));
  }
}

void Service::LearnPredictionError(double ratio) {
  prediction_error_ += kErrorMemory * (std::min(ratio, 1.0) - prediction_error_);
}

Status Service::LoadPredictionError() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<RunRecord> runs, store_.ListRuns(kErrorRuns));
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const double predicted = run->plan.prediction.step_seconds;
    if (predicted > 0) LearnPredictionError(ErrorRatio(run->step_seconds, predicted));
  }
  return OkStatus();
}

Result<std::vector<TriedPlan>> Service::LoadTried(std::span<const AttemptRecord> attempts) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<RunRecord> runs, store_.ListRuns(kRunsRead));
  std::vector<TriedPlan> tried;
  for (const AttemptRecord& attempt : attempts) {
    if (!attempt.ended_at) continue;
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const RunRecord& record) {
      return record.job_id == attempt.job_id && record.epoch == attempt.epoch;
    });
    AddTried(attempt, run == runs.end() ? 0 : run->step_seconds, tried);
  }
  return tried;
}

Status Service::LoadCalibrations() {
  WEFT_ASSIGN_OR_RETURN(std::vector<CalibrationRecord> records, store_.ListCalibrations());
  int64_t runs = 0;
  std::lock_guard lock(calibration_mutex_);
  calibrations_.clear();
  for (const CalibrationRecord& record : records) {
    calibrations_[record.machine] = record.calibration;
    runs += record.calibration.runs;
  }
  metrics_.SetCalibrationRuns(runs);
  return OkStatus();
}

WorkerProfile Service::Calibrated(WorkerProfile machine) const {
  std::lock_guard lock(calibration_mutex_);
  const auto found = calibrations_.find(planner::MachineKind(machine));
  if (found != calibrations_.end()) machine.calibration = found->second;
  return machine;
}

Result<planner::CalibrationReport> Service::CalibratePlans(bool dry_run, bool reset,
                                                           const std::shared_ptr<CallRecord>& by) {
  if (dry_run && reset) {
    return InvalidError("a dry run has nothing to reset; hint: ask for one of them");
  }
  std::lock_guard calibrating(calibrating_mutex_);
  std::map<std::string, TimeCalibration> in_use;
  {
    std::lock_guard lock(calibration_mutex_);
    in_use = calibrations_;
  }
  planner::CalibrationReport report;
  if (reset) {
    in_use.clear();
  } else {
    WEFT_ASSIGN_OR_RETURN(std::vector<RunRecord> records, store_.ListRuns(kRunsRead));
    std::vector<planner::TimedRun> runs;
    for (RunRecord& record : records) runs.push_back(ToTimedRun(std::move(record)));
    report = planner::Calibrate(runs, in_use);
    for (const planner::MachineReport& machine : report.machines) {
      if (machine.adopted) {
        in_use[machine.machine] = machine.calibration;
      } else {
        in_use.erase(machine.machine);
      }
    }
  }
  report.dry_run = dry_run;
  report.reset = reset;
  if (dry_run) return report;
  Transaction change;
  change.calibrations.emplace();
  for (const auto& [machine, calibration] : in_use) {
    change.calibrations->push_back({machine, calibration});
  }
  change.audit = by;
  WEFT_RETURN_IF_ERROR(CommitAndWait(store_, std::move(change)).status());
  WEFT_RETURN_IF_ERROR(LoadCalibrations());
  for (const planner::MachineReport& machine : report.machines) {
    WEFT_LOG_INFO << "plans for " << machine.machine << ": " << machine.verdict;
  }
  return report;
}

}  // namespace weft::coordinator
