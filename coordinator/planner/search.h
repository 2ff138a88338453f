#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/status.h"
#include "coordinator/planner/costed_plan.h"
#include "coordinator/planner/job_check.h"
#include "coordinator/planner/job_set.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// What was found for a job with one mesh.
struct SearchResult {
  JobSpec job;
  std::vector<CostedPlan> fitting;                ///< Fastest first, as many as asked for.
  std::vector<CostedPlan> infeasible;             ///< Least memory first, as many.
  std::shared_ptr<const ClusterProfile> cluster;  ///< That of `workers`, where it is not the one
                                                  ///< given.
  std::shared_ptr<const WorkerGroups> workers;
  std::string times_from;  ///< Where rates come from; empty: measured.
};

/// What was found for several.
struct SearchResults {
  std::vector<SearchResult> found;  ///< Of jobs with a plan to show, in their order.
  bool has_workers = false;         ///< For any of them.
  int64_t considered = 0;
  int64_t fit = 0;       ///< Of them; where several jobs are searched, of those that are judged.
  int64_t too_slow = 0;  ///< Of them, not judged: no step of theirs is among the fastest asked for.
  int64_t without_room = 0;  ///< Of them, not judged: of several jobs, no worker has room for them.
};

/// This many of the fastest plans are found where no other number is asked for.
inline constexpr size_t kSorted = 32;

/// Whether the ranks of `job` are to compute on GPUs: it says so, or leaves the choice, and
/// some worker has them.
bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster);

/// `cluster` with GPUs that lack the products of the job's precision out of use.
ClusterProfile WithoutUnfit(const JobSpec& job, ClusterProfile cluster);

/// Jobs among which the planner chooses when it plans `job`, which is valid: each choice that it
/// leaves open (ChoicesOf), that passes `check` and that computes where the first possible one
/// does, on GPUs or processors; with `any_mesh` each of them with any mesh (MeshesOf). At least
/// one: kInvalid where none is left, as `check` says of a choice.
Result<JobSet> JobsOf(const JobSpec& job, const ClusterProfile& cluster, bool any_mesh,
                      const JobCheck& check = ValidateJob);

/// Tries everything, of each of `jobs`, which are those of one job (JobsOf). Of several jobs, what
/// takes longer than the `wanted` fastest of all that fit, whatever it recomputes
/// (Candidate::least_seconds), is counted and not looked at (BestFirst). On `threads` threads (0:
/// of several jobs as many as the machine runs); the result does not depend on their number.
/// `cluster` outlives it. After a request to `stop` it ends soon, with nothing found.
SearchResults Search(const JobSet& jobs, const ClusterProfile& cluster, int threads = 0,
                     size_t wanted = kSorted, const std::stop_token& stop = {});

}  // namespace weft::planner
