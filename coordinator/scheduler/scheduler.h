#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/queue_spec.h"
#include "coordinator/scheduler/best_plan.h"
#include "coordinator/scheduler/capacity.h"
#include "coordinator/scheduler/elastic_resize.h"
#include "coordinator/scheduler/restart.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What a job that waits is expected to take: what it computes with, and the time of a step.
struct JobSize {
  ComputeAmount amount;
  double step_seconds = 0;

  bool operator==(const JobSize&) const = default;
};

/// A job that waits.
struct QueuedJob {
  std::string id;
  const JobSpec* spec = nullptr;    ///< Outlives the call.
  const Plan* last_plan = nullptr;  ///< Of its last attempt; null before the first.
  bool out_of_memory = false;       ///< That is why the last attempt ended.
  bool ran_out_of_memory = false;   ///< Some attempt did.
  bool replanned = false;           ///< The last attempt was stopped for a better plan.
  const Plan* next_plan = nullptr;  ///< That plan, where it is still known, or one tried before
                                    ///< that goes on when another one failed.
  bool planned_long = false;        ///< Others need not wait any more until its plan is known.
  const std::string* infeasible_reason = nullptr;  ///< Why no worker of the cluster can run it,
                                                   ///< where that is known; of jobs that never ran.
  const std::string* given_up_reason = nullptr;    ///< Why no plan is looked for now, where the
                                                   ///< last search took too long; likewise.
  std::string queue = kDefaultQueue;
  int64_t priority = 0;
  double submitted_at = 0;  ///< Seconds since 1970, as `now` of the snapshot.
  int64_t steps_left = 0;   ///< 0: not known.
  double step_seconds = 0;  ///< Measured with last_plan; 0: not yet.
  int64_t preemptions = 0;  ///< Times that it was stopped for another job.
  bool promised = false;    ///< Others were stopped or made smaller for it since it waits: it
                            ///< goes first, or what they left would go to someone else.
  bool recovers = false;    ///< Its last attempt failed: it may start on spare workers.
  std::optional<JobSize> size = {};  ///< From `sizes` of decisions for the same cluster.
};

/// A job that holds workers: it starts, runs or stops.
struct ActiveJob {
  std::string id;
  RunningJob job;  ///< spec and plan are never null.
  std::string queue = kDefaultQueue;
  int64_t priority = 0;
  bool preemptible = true;
  double submitted_at = 0;     ///< Seconds since 1970.
  double unsaved_seconds = 0;  ///< Training since its newest verified checkpoint.
  int64_t preemptions = 0;
  bool may_stop = true;   ///< False: nobody may stop it now, since it starts or is being recorded.
  bool stopping = false;  ///< It was asked to stop. What it holds, except what `next_plan` needs,
                          ///< is free soon.
  const Plan* next_plan = nullptr;  ///< By which a job that is stopping goes on; null: it waits.
};

/// A job that must not start yet: it comes after others, or its group is full.
struct HeldJob {
  std::string id;
  std::string why;                      ///< For people.
  std::vector<std::string> blocked_by;  ///< Jobs that it comes after.
};

/// When jobs give way to others; docs/decisions/0012 has the reasons.
struct SchedulerRules {
  /// A job goes before one of the same priority that came earlier by less than this many times the
  /// difference in the time that the whole cluster would take for what is left of them. 0: first
  /// come, first served.
  double age_factor = 1000;
  /// A running job of the same priority gives way when this many times as much is left of it, in
  /// seconds times devices, as of the one that waits. 0: never.
  double preempt_factor = 1.25;
  /// An attempt runs at least so long before it gives way to a job of the same priority, and of a
  /// job that was displaced before to any. Above 0: else jobs may displace each other in a circle.
  double protected_seconds = 300;
  /// A job that was displaced so often gives way to higher priorities and owners of quotas alone.
  int64_t most_preemptions = 20;
  /// How jobs that leave their number of ranks open share the GPUs, or the cores (ShareCompute). 1:
  /// equal parts; larger: more for those with little work left.
  double share_exponent = 5;
  /// Workers without ranks that only jobs start on which recover; WithoutSpares says which.
  int64_t spare_workers = 0;
  /// Predicted times may be wrong by this part of them, for the earliest and latest start.
  double prediction_error = 0.2;
  /// How elastic jobs get more ranks. scale_up.after_seconds 0: none does.
  ScaleUpRules scale_up;
};

struct SchedulerSnapshot {
  std::vector<QueuedJob> queue;     ///< In the order of submission.
  std::vector<HeldJob> held;        ///< Likewise; they wait, and hold nobody back.
  ClusterProfile cluster;           ///< Attached workers with a valid lease, all they offer.
  FreeMap free;                     ///< Without what active jobs hold.
  std::vector<MeasuredLink> links;  ///< What was measured between workers of the cluster.
  std::vector<ActiveJob> active;
  std::vector<QueueSpec> queues;      ///< Valid by ValidateQueues; empty: the default one alone.
  std::set<std::string> new_workers;  ///< That have not stayed long enough for jobs to grow there.
  double now = 0;                     ///< Seconds since 1970.
  SchedulerRules rules;
};

/// All ranks of the job start now, with this plan.
struct StartDecision {
  std::string job_id;
  Plan plan;
};

/// A running job saves a checkpoint, stops and waits.
struct PreemptDecision {
  std::string job_id;
  std::string for_job;
  std::string why;  ///< "for job a, of priority 5": what happened, for people.
};

/// A running job saves a checkpoint, stops and goes on by another plan.
struct ResizeDecision {
  std::string job_id;
  PlanChange change;
  std::string for_job;  ///< Which starts on what this one gives up; empty: it grows.
};

/// A rank joins a running job, which goes on meanwhile.
struct JoinDecision {
  std::string job_id;
  std::string worker_id;
};

/// Why a job waits.
struct WaitDecision {
  std::string job_id;
  Reason reason;
  std::string message;
  bool infeasible =
      false;              ///< No worker of the cluster can run it, as long as that stays the same.
  bool given_up = false;  ///< The search for its plan took too long, and comes again after a pause.
  bool for_planning = false;  ///< Its plan is not known, or that of the job it waits behind.
  int64_t position = 0;       ///< Among the jobs that wait, from 1.
  /// From now, by the predicted time of the jobs before it; nullopt: not known.
  std::optional<double> start_in_seconds = {};
  /// The same when predictions are wrong by rules.prediction_error.
  std::optional<double> earliest_start_in_seconds = {};
  std::optional<double> latest_start_in_seconds = {};
  std::vector<std::string> blocked_by = {};  ///< Jobs before it, or that hold what it needs; a few.
};

struct SchedulerDecisions {
  std::vector<StartDecision> starts;
  std::vector<PreemptDecision> preemptions;
  std::vector<ResizeDecision> resizes;
  std::vector<JoinDecision> joins;
  std::vector<WaitDecision> waits;
  /// Sizes that this pass has learnt, for QueuedJob::size of the next ones.
  std::vector<std::pair<std::string, JobSize>> sizes;
};

/// One pass over the jobs that wait and those that run; docs/scheduling.md says by which rules.
/// Pure except the calls of `plan`: one for each job that starts, and a few hundred, however many
/// jobs wait.
///
/// Each job starts with all its ranks or not at all. Jobs have their turn by quota, priority, fair
/// share and the work that is left of them. The first one that must wait has a reservation: those
/// after it start only where they do not delay it. A job whose plan is being looked for holds back
/// those after it until it is `planned_long`; then it also takes the plan for the whole cluster,
/// where that is known and has room. All that wait `for_planning` use up the same while, so that
/// behind any number of such jobs others start soon. Meanwhile the next jobs are planned, too, and
/// those submitted last. A job that no worker could run, or whose plan was given up, holds nobody
/// back.
///
/// With spare workers, jobs that recover and fit start before all others, also on spares. Those
/// that do not fit have their turn like others.
///
/// A job that ran before keeps its mesh, micro-batch and threads when they fit somewhere, so that
/// its numbers stay bitwise the same; else it is planned anew for the workers that are there. One
/// that ran out of memory is planned anew within WithLessMemory, when something fits there, unless
/// that was a trial. One that was stopped for a better plan gets that, when it fits, or else is
/// planned anew when that is faster than its last plan. A job that leaves the device to the planner
/// stays on the kind that it had, and never waits on CPUs for want of a free GPU.
SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan);

/// What would start the only job of `snapshot.queue` now, in words: fewer ranks, or a priority and
/// whom it displaces, or its turn where there is room for it. Empty: its plan is not known, a limit
/// of its queue is in the way, or nothing would. Pure except `plan`.
std::vector<std::string> WouldStartNow(const SchedulerSnapshot& snapshot, const PlanFunction& plan);

}  // namespace weft::coordinator
