#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/job_set.h"
#include "coordinator/planner/mesh_options.h"
#include "coordinator/planner/mesh_search.h"
#include "coordinator/planner/option.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/schedule_book.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// A candidate that was looked at.
struct Judged {
  size_t mesh = 0;
  Candidate candidate;
  bool fits = false;
  Option option = {};
};

/// Looks at the candidates of several meshes in the order of what they take at least: first by a
/// bound of the whole mesh, and of meshes that it leaves by one of each candidate, until all others
/// take longer than the `wanted` fastest of those that fit. Which those are does not depend on the
/// number of threads.
class BestFirst {
 public:
  /// `jobs` are those of one job (JobsOf); both outlive it. `wanted` 0: looks at all.
  BestFirst(const JobSet& jobs, const ClusterProfile& cluster, size_t wanted, int threads);

  /// To be called once: what was looked at, in that order.
  std::vector<Judged> Run();

  /// Those of the job of that number; none where none is fit for its precision.
  const WorkerGroups& Workers(size_t mesh) const { return *meshes_[mesh].pool->workers; }
  /// Theirs, where it is not the one given.
  const std::shared_ptr<const ClusterProfile>& Cluster(size_t mesh) const {
    return meshes_[mesh].pool->cluster;
  }
  /// Candidates of the job of that number, looked at or not.
  int64_t Considered(size_t mesh) const { return meshes_[mesh].considered; }
  /// Of them, those for which no worker has room, whatever they recompute. Where no others are left
  /// to be told of, some of them are looked at.
  int64_t WithoutRoom(size_t mesh) const { return meshes_[mesh].without_room; }
  /// Of a mesh that has workers. Not for several threads at once.
  MeshSearch& Opened(size_t mesh);
  /// Where workers have no cores for the ranks that `job`, that of that number, asks for, one such
  /// candidate.
  std::optional<Candidate> WithoutCores(size_t mesh, const JobSpec& job) const {
    return meshes_[mesh].pool->options->WithoutCores(job);
  }

 private:
  /// What is known of workers for jobs of one precision.
  struct Pool {
    std::shared_ptr<const ClusterProfile> cluster;
    std::unique_ptr<WorkerGroups> workers;
    std::unique_ptr<MeshOptions> options;  ///< Where there are workers.
  };
  /// Candidates without room, of which the least has so many bytes.
  struct LargeChoice {
    double bytes = 0;
    const RankChoice* choice = nullptr;
  };
  struct MeshState {
    const Pool* pool = nullptr;
    RankShare* share = nullptr;
    const MeshOptions::Cut* cut = nullptr;
    std::vector<const RankChoice*> choices;
    std::vector<LargeChoice> large;
    int64_t considered = 0;
    int64_t without_room = 0;
    double least_seconds = 0;      ///< Of what is left of it.
    std::unique_ptr<JobSpec> job;  ///< Where it was opened,
    std::unique_ptr<MeshSearch> search;
  };
  /// A candidate that may have to be looked at.
  struct Waiting {
    size_t mesh = 0;
    Candidate candidate;
    bool operator<(const Waiting& other) const;  ///< Later.
  };

  static Pool PoolOf(const std::vector<const JobSpec*>& choices, const ClusterProfile& cluster,
                     bool on_devices);
  void MakeShares();
  void Bound(const JobSpec& job, MeshState& mesh) const;
  /// Of what is left of a mesh with more than `above` seconds.
  static double LeastSeconds(const JobSpec& job, const MeshState& mesh, double above);
  /// Takes candidates of meshes up to `limit` seconds.
  void Open(const std::vector<size_t>& meshes, double limit);
  void JudgeUpTo(double least_seconds);
  /// Some of those without room, until `wanted` misfits are known.
  void JudgeWithoutRoom();
  double Limit() const;

  const JobSet& jobs_;
  const JobSpec first_;  ///< Of them.
  const size_t wanted_;
  const int threads_;
  std::map<std::string_view, Pool> pools_;  ///< By precision.
  std::vector<std::unique_ptr<RankShare>> shares_;
  ScheduleBook book_;
  std::vector<MeshState> meshes_;
  /// What is left of meshes, by bounds.
  std::set<std::pair<double, size_t>> left_;
  std::priority_queue<Waiting> waiting_;  ///< The soonest on top.
  std::priority_queue<double> fastest_;   ///< Steps of those that fit, the slowest on top.
  std::vector<Judged> judged_;
};

}  // namespace weft::planner
