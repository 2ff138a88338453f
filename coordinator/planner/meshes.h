#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/job_check.h"

namespace weft::planner {

/// Degrees of model parallelism: the fields of ResourceSpec that say them.
struct MeshChoice {
  int64_t tensor_parallel = 1;
  int64_t tensor_rows = 1;
  int64_t context_parallel = 1;
  int64_t expert_parallel = 1;
  int64_t pipeline_parallel = 1;
  int64_t pipeline_chunks = 1;
  int64_t zero_stage = 0;
  int64_t zero_shard_ranks = 0;
  bool sequence_parallel = false;
  std::string context_method;
  std::string pipeline_schedule;

  /// Takes the choice of a job.
  explicit MeshChoice(const ResourceSpec& resources);
  /// Makes it that of a job.
  void Put(ResourceSpec& resources) const;
  bool operator==(const MeshChoice&) const = default;
};

/// What meshes with the same grids, contexts, experts and pipelines differ in.
struct SharingChoice {
  int64_t zero_stage = 0;
  int64_t zero_shard_ranks = 0;
  bool sequence_parallel = false;

  /// Makes it that of a job, or of its mesh.
  template <class Resources>
  void Put(Resources& resources) const {
    resources.zero_stage = zero_stage;
    resources.zero_shard_ranks = zero_shard_ranks;
    resources.sequence_parallel = sequence_parallel;
  }
  bool operator==(const SharingChoice&) const = default;
};

/// Meshes that differ in SharingChoice alone: so many that they are not made before they are asked
/// for.
struct MeshFamily {
  MeshChoice mesh;  ///< Without what `sharings` say.
  /// At least one. Families with the same ranks have the same list.
  std::shared_ptr<const std::vector<SharingChoice>> sharings;
};

/// Every mesh that `job` leaves open and that can run on `cluster`: tensor (2-D,
/// too), pipeline (schedule, chunks), context (ring, ulysses) and expert
/// parallelism, ZeRO stage and its groups, and sequence parallelism. What differs from its default
/// in `job` stays as it is. Left out are ways that `check` or CutModel refuse; replicas larger than
/// the cluster; what computes elsewhere than `job` as it is would, GPUs or processors;
/// gpipe, which takes the time of 1f1b and more memory; and pipelines where TriesPipelines says no.
/// The first one is that of the job itself.
std::vector<MeshFamily> MeshesOf(const JobSpec& job, const ClusterProfile& cluster,
                                 const JobCheck& check = ValidateJob);

/// Whether pipelines are among them: on more than eight GPUs of machines of several kinds, and on
/// the processors of more than eight machines, only those of the degree that the job asks for.
bool TriesPipelines(const JobSpec& job, const ClusterProfile& cluster);

}  // namespace weft::planner
