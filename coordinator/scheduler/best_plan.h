#pragma once

#include <functional>
#include <map>
#include <set>
#include <stop_token>
#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"

namespace weft::coordinator {

/// Plans for a job on a cluster, best first; kExhausted or kInvalid says why there is none,
/// kUnavailable why there is no answer yet, and kAborted why none is looked for now.
using PlanFunction = std::function<Result<PlanReport>(const JobSpec&, const ClusterProfile&)>;

/// The same as it is found: kAborted, soon after a request to stop.
using StoppablePlanFunction = std::function<Result<PlanReport>(
    const JobSpec&, const ClusterProfile&, const std::stop_token& stop)>;

/// Whether the search for a plan took too long: it comes again after a pause.
inline bool WasGivenUp(const Status& status) {
  return status.code() == StatusCode::kAborted;
}

/// Whether a PlanFunction, or what it returns, has no answer yet.
inline bool HasNoAnswerYet(const Status& status) {
  return status.code() == StatusCode::kUnavailable || WasGivenUp(status);
}

/// What is free on an attached worker.
struct FreeCapacity {
  int64_t cores = 0;
  int64_t memory_bytes = 0;
  std::set<int64_t> devices = {};  ///< Indices of GPUs that work.
};

/// Free capacity by worker id; an absent worker is full.
using FreeMap = std::map<std::string, FreeCapacity>;

/// Ranks of the plan have a GPU each.
inline bool OnDevices(const Plan& plan) {
  return plan.device == "cuda";
}

/// The GPU of a rank; -1: it has none.
inline int64_t DeviceOf(const Plan& plan, size_t rank) {
  return rank < plan.rank_devices.size() ? plan.rank_devices[rank] : -1;
}

/// The GPUs of a worker that are free and work.
std::vector<DeviceSpec> FreeDevices(const WorkerProfile& worker, const FreeCapacity& free);

/// What is free when no job runs.
FreeMap AllFree(const ClusterProfile& cluster);

/// The cluster as if it had only what is free.
ClusterProfile FreePart(const ClusterProfile& cluster, const FreeMap& free);

/// The job with the device it computes on said: that of `last_plan`, or before the first plan a GPU
/// where some worker has one. A precision that it leaves open stays that of `last_plan`, too.
JobSpec WithDevice(const JobSpec& spec, const Plan* last_plan, const ClusterProfile& cluster);

/// The job after an attempt with `plan` ran out of memory: a rank may use 15 % less than that plan
/// expected, and less than the job allowed before.
JobSpec WithLessMemory(const JobSpec& spec, const Plan& plan);

/// The chosen plan, or the planner's reason against all.
Result<Plan> BestPlan(const JobSpec& spec, const ClusterProfile& cluster, const PlanFunction& plan);

/// The plan to go on by after one with which the job was stopped for a better one. Of a job that
/// once `ran_out_of_memory` ranks get no more memory than they have in `present`.
Result<Plan> BetterPlan(const JobSpec& spec, const Plan& present, bool ran_out_of_memory,
                        const ClusterProfile& cluster, const PlanFunction& plan);

}  // namespace weft::coordinator
