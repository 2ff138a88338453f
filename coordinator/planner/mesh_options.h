#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// What of a plan is chosen before anything is known of its memory.
struct Candidate {
  int64_t threads = 1;
  int64_t ranks = 1;
  int64_t ranks_per_worker = 1;
  int64_t micro_batch = 1;
  double least_seconds = 0;  ///< No plan that is made of it has a shorter step.
  int64_t number = 0;        ///< Of those of its mesh.
};

/// Candidates of a mesh with as many ranks of as many threads: each spread with each micro-batch.
struct RankChoice {
  int64_t threads = 1;
  int64_t ranks = 1;
  std::span<const int64_t> spreads;        ///< Candidate::ranks_per_worker, with cores for all.
  std::span<const int64_t> micro_batches;  ///< For pipelines those that pass Takes().
};

/// Ranks that see one sequence, or parts of it.
inline int64_t ReplicaRanks(const ResourceSpec& resources) {
  return resources.tensor_parallel * resources.pipeline_parallel * resources.context_parallel;
}

/// The number of `ranks` that sum their gradients with each other.
inline int64_t GradientRanks(const ResourceSpec& resources, int64_t ranks) {
  return ranks / (resources.tensor_parallel * resources.pipeline_parallel);
}

/// Micro-batches that each of `ranks` ranks has in a step of `mesh`.
inline int64_t PassesOf(const JobSpec& mesh, int64_t ranks, int64_t micro_batch) {
  return mesh.train.global_batch / (ranks / ReplicaRanks(mesh.resources) * micro_batch);
}

/// Numbers of ranks, spreads, threads and micro-batches for the meshes of a job: found once for
/// all.
class MeshOptions {
 public:
  /// Takes meshes of `choices`, at least one, which are those of a job with one precision.
  /// `workers` outlive it.
  MeshOptions(const std::vector<const JobSpec*>& choices, const WorkerGroups& workers);
  /// Adds a mesh before it is asked about it, or one with as many ranks in a replica and stages.
  void Add(const JobSpec& mesh);

  const std::set<int64_t>& threads() const { return threads_; }
  /// Micro-batches of any number of ranks.
  const std::set<int64_t>& micro_batches() const { return all_micro_batches_; }

  /// The choices of all meshes with as many ranks in a replica; `mesh` has those for which Has()
  /// says so. They live as long as this.
  const std::vector<RankChoice>& OfReplica(const JobSpec& mesh) const {
    return choices_.at(ReplicaRanks(mesh.resources));
  }
  /// Whether the mesh has candidates of this many ranks. `asked` is another mesh of the job: a plan
  /// that both have is left to the one that shares fewer things, where one rank shares with nobody,
  /// or a group has all ranks.
  bool Has(const ResourceSpec& mesh, const ResourceSpec* asked, int64_t ranks) const;

  /// CutModel of `mesh`, and what follows from it.
  struct Cut {
    const std::vector<int64_t>& blocks;
    RankBlocks of_ranks;
    CutFloor floor;
  };
  const Cut& CutOf(const JobSpec& mesh) const {
    return cuts_.at({mesh.resources.pipeline_parallel, mesh.resources.pipeline_chunks});
  }

  /// Whether `mesh` has a candidate with that micro-batch: its pipeline takes as many of them.
  static bool Takes(const JobSpec& mesh, int64_t ranks, int64_t micro_batch);

  /// Whether WithoutCores may find some for any mesh of a job that asks for this many ranks (0:
  /// any).
  bool MayLackCores(int64_t ranks) const;
  /// Where the workers have no cores for the ranks that `mesh` itself asks for, one such candidate.
  std::optional<Candidate> WithoutCores(const JobSpec& mesh) const;

 private:
  std::vector<int64_t> Ranks(const JobSpec& mesh, int64_t threads) const;
  void AddRanks(const JobSpec& mesh, std::vector<RankChoice>& choices);
  std::vector<int64_t> MicroBatches(const JobSpec& job, int64_t data_ranks) const;

  const WorkerGroups& workers_;
  const std::vector<int64_t> data_ranks_;  ///< Divisors of the batch.
  std::set<int64_t> threads_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> spreads_;  ///< By threads, ranks.
  std::map<int64_t, std::vector<int64_t>> micro_batches_;                ///< By data ranks.
  std::set<int64_t> all_micro_batches_;
  std::map<int64_t, std::vector<int64_t>> blocks_;   ///< By stages.
  std::map<std::pair<int64_t, int64_t>, Cut> cuts_;  ///< By ranks of a pipeline, chunks.
  /// The choices by ranks of a replica: whatever else a mesh shares.
  std::map<int64_t, std::vector<RankChoice>> choices_;
};

}  // namespace weft::planner
