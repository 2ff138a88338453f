#pragma once

#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"

namespace weft::planner {

/// `job` with every way to share a model between ranks that it leaves open and can run on
/// `cluster`: tensor (grids of rows, too), pipeline (schedule, chunks), context (ring, ulysses) and
/// expert parallelism, ZeRO stage and its groups, and sequence parallelism. What differs from its
/// default in `job` stays as it is. Left out are ways that ValidateJob or CutModel refuse; replicas
/// larger than the cluster; what computes elsewhere than `job` as it stands would, GPUs or
/// processors; gpipe, which takes the time of 1f1b and more memory; and pipelines where there are
/// too many (TriesPipelines). The first one is the job itself.
std::vector<JobSpec> MeshesOf(const JobSpec& job, const ClusterProfile& cluster);

/// Whether pipelines are among them: on GPUs, where there are more than eight, only those of the
/// degree that the job asks for.
bool TriesPipelines(const JobSpec& job, const ClusterProfile& cluster);

}  // namespace weft::planner
