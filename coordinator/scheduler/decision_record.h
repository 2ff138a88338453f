#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {

/// What a planner answered in one pass, in the order in which it was asked.
using PlanAnswers = std::vector<Result<Plan>>;

/// Asks `plan`, and adds what it answered to `answers`, which outlives the function.
PlanFunction Recording(const PlanFunction& plan, PlanAnswers& answers);

/// Writes passes as lines of JSON. Specs, plans and clusters are written once, when they are first
/// needed, and then named by a number: lines are read in the order in which they were written.
class PassWriter {
 public:
  /// One line, without its end.
  std::string Write(const SchedulerSnapshot& snapshot, const PlanAnswers& answers,
                    const SchedulerDecisions& decisions);

 private:
  int64_t Intern(std::string text, Json& added);
  Json Queued(const QueuedJob& job, Json& added);
  Json Active(const ActiveJob& job, Json& added);
  int64_t SpecOf(const std::string& job_id, const JobSpec& spec, Json& added);
  Json PlanOf(const Plan* plan, Json& added);

  std::map<std::string, int64_t, std::less<>> numbers_;       ///< By text.
  std::map<std::pair<std::string, int64_t>, int64_t> specs_;  ///< By job and steps: of a phase.
};

/// Reads what a PassWriter wrote, and runs the passes again.
class PassReplay {
 public:
  /// Runs the pass of one line. OK: it decides as was recorded. kConflict: the first difference.
  /// kCorrupt: the line cannot be read.
  Status Run(std::string_view line);

 private:
  Status Learn(const Json& added);
  Result<const Plan*> PlanAt(const Json& number);

  std::map<int64_t, Json> texts_;
  std::map<int64_t, JobSpec> specs_;
  std::map<int64_t, Plan> plans_;
};

/// Runs the passes of a file of lines again; the first that differs, with its number from 1.
Status ReplayDecisions(std::string_view lines);

}  // namespace weft::coordinator
