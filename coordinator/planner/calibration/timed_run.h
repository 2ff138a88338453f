#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "coordinator/planner/rank_share.h"

namespace weft::planner {

/// An attempt at a job that ended, with what was planned and what was measured.
struct TimedRun {
  std::string id;                       ///< For people: the job, and which attempt.
  JobSpec job;                          ///< With the sizes of its model.
  Plan plan;                            ///< With what was predicted then.
  std::vector<WorkerProfile> machines;  ///< That rank_workers of the plan names.
  double step_seconds = 0;              ///< Median of its steps.
  int64_t timed_steps = 0;              ///< That is their median.
  int64_t memory_bytes = 0;             ///< Peak of rank 0 without runtime_bytes; 0: unknown.
};

/// Steps that a run must have timed to count.
inline constexpr int64_t kLeastTimedSteps = 5;

/// Machines of one kind share what runs teach: those of a processor and instruction set.
std::string MachineKind(const WorkerProfile& machine);

/// Why nothing can be learned of this run; empty where something can.
std::string WhyLeftOut(const TimedRun& run);

/// The step of a run as the planner predicts it where machines have this calibration, whatever they
/// say themselves.
class RunForecast {
 public:
  /// kInvalid where the plan is none of this job and of these machines.
  static Result<RunForecast> Of(const TimedRun& run);

  TimeBreakdown Step(const TimeCalibration& calibration) const;
  /// What its blocks compute.
  MeasuredShape Block() const;

 private:
  RunForecast(JobSpec planned, const TimedRun& run, std::vector<int64_t> cut)
      : planned_(std::move(planned)),
        plan_(run.plan),
        cluster_{run.machines},
        parameters_(planned_),
        cut_(std::move(cut)) {}

  JobSpec planned_;
  Plan plan_;
  ClusterProfile cluster_;
  RankParameters parameters_;
  std::vector<int64_t> cut_;  ///< CutModel of the job.
};

}  // namespace weft::planner
