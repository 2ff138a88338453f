#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// Finds plans for a job on a cluster, best first; kExhausted or kInvalid says why there is none.
using PlanFunction = std::function<Result<PlanReport>(const JobSpec&, const ClusterProfile&)>;

/// A job that waits.
struct QueuedJob {
  std::string id;
  const JobSpec* spec = nullptr;    ///< Outlives the call.
  const Plan* last_plan = nullptr;  ///< Of its last attempt; null before the first.
  bool out_of_memory = false;       ///< That is why the last attempt ended.
};

/// What is free on an attached worker.
struct FreeCapacity {
  int64_t cores = 0;
  int64_t memory_bytes = 0;
  std::set<int64_t> devices = {};  ///< Indices of GPUs that work.
};

struct SchedulerSnapshot {
  std::vector<QueuedJob> queue;  ///< First come, first served.
  ClusterProfile cluster;        ///< Attached workers with a valid lease, all they offer.
  std::map<std::string, FreeCapacity> free;  ///< By worker id; an absent worker is full.
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
};

struct SchedulerDecisions {
  std::vector<StartDecision> starts;
  std::vector<WaitDecision> waits;
};

/// One pass over the queue: each job starts with all its ranks or not at all, in order; a job that
/// waits for capacity holds back those behind it (it would starve otherwise), one that no worker
/// could run at all does not. A job that ran before keeps its mesh, micro-batch and threads when
/// they fit somewhere, so that its numbers stay bitwise the same; else it is planned anew for the
/// workers that are there. One that ran out of memory is planned anew within WithLessMemory, when
/// something fits there. A job that leaves the device to the planner stays on the kind that it had,
/// and never waits on CPUs for want of a free GPU. Pure but for the calls of `plan`.
SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan);

/// The job after an attempt with `plan` ran out of memory: a rank may use 15 % less than that plan
/// expected, and less than the job allowed before.
JobSpec WithLessMemory(const JobSpec& spec, const Plan& plan);

/// Takes what the ranks of `plan` need from `free`: on GPUs cores and the GPUs, else cores and
/// memory.
void TakeCapacity(const Plan& plan, std::map<std::string, FreeCapacity>& free);

}  // namespace weft::coordinator
