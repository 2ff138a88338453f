#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/mesh_search.h"
#include "coordinator/planner/option.h"

namespace weft::planner {

/// What was found for a job.
struct SearchResult {
  std::vector<Option> fitting;     ///< Fastest first, up to kSorted.
  std::vector<Option> misfitting;  ///< Least memory first, up to kSorted.
  std::vector<const WorkerProfile*> workers;
  std::vector<size_t> kinds;  ///< By worker: equal where all but names is equal.
  int64_t considered = 0;
  int64_t fit = 0;         ///< Of them; where several jobs are searched, of those that are judged.
  int64_t too_slow = 0;    ///< Of them, not judged: no step of theirs is among the kSorted fastest.
  std::string times_from;  ///< On GPUs: where their rates come from.
};

/// So many options at the head of each list are in order.
inline constexpr size_t kSorted = 32;

/// Whether the ranks of `job` are to compute on GPUs: it says so, or leaves the choice, has no
/// pipeline and no shared sequences, and some worker has them.
bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster);

/// Tries everything, of each of `jobs`, which differ in how ranks share the model; a result for
/// each. Of several jobs, what takes longer than the kSorted fastest of all that fit, whatever it
/// recomputes (Candidate::least_seconds), is counted and not looked at. On `threads` threads, of
/// which the result does not depend. `cluster` outlives it.
std::vector<SearchResult> Search(const std::vector<JobSpec>& jobs, const ClusterProfile& cluster,
                                 int threads = 1);

}  // namespace weft::planner
