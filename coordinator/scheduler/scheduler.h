#pragma once

#include <string>
#include <vector>

#include "coordinator/scheduler/best_plan.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

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
};

struct SchedulerSnapshot {
  std::vector<QueuedJob> queue;  ///< First come, first served.
  ClusterProfile cluster;        ///< Attached workers with a valid lease, all they offer.
  FreeMap free;
};

/// All ranks of the job start now, with this plan.
struct StartDecision {
  std::string job_id;
  Plan plan;
};

/// Why a job waits.
struct WaitDecision {
  std::string job_id;
  Reason reason;
  std::string message;
  bool infeasible =
      false;  ///< No worker of the cluster can run it, as long as that stays the same.
};

struct SchedulerDecisions {
  std::vector<StartDecision> starts;
  std::vector<WaitDecision> waits;
};

/// One pass over the queue: each job starts with all its ranks or not at all, in order; a job that
/// waits for capacity holds back those behind it (it would starve otherwise), one that no worker
/// could run at all does not. One whose plan is not known yet holds them back for a while, in which
/// the next ones are planned, too; once it is `planned_long` it also takes the plan for the whole
/// cluster, where that is known and has room. A job that ran before keeps its mesh, micro-batch and
/// threads when they fit somewhere, so that its numbers stay bitwise the same; else it is planned
/// anew for the workers that are there. One that ran out of memory is planned anew within
/// WithLessMemory, when something fits there, unless that was a trial. One that was stopped for a
/// better plan gets that, when it fits, or else is planned anew when that is faster than its last
/// plan. A job that leaves the device to the planner stays on the kind that it had, and never waits
/// on CPUs for want of a free GPU. Pure but for the calls of `plan`.
SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan);

/// Takes what the ranks of `plan` need from `free`: on GPUs cores and the GPUs, else cores and
/// memory.
void TakeCapacity(const Plan& plan, FreeMap& free);

/// The same plan on workers that have room: where it was if possible, else filling the emptiest
/// worker first so that neighbouring ranks share a machine. nullopt: it fits nowhere.
std::optional<Plan> PlaceAgain(const Plan& last, const ClusterProfile& cluster,
                               const FreeMap& free);

/// Whether all ranks have room where the plan puts them.
bool Fits(const Plan& plan, FreeMap free);

}  // namespace weft::coordinator
