#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <stop_token>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/costed_plan.h"
#include "coordinator/planner/job_set.h"
#include "coordinator/planner/mesh_group.h"
#include "coordinator/planner/mesh_options.h"
#include "coordinator/planner/mesh_search.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/schedule_cache.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// A candidate that was looked at.
struct Judged {
  size_t mesh = 0;
  Candidate candidate;
  bool fits = false;
  CostedPlan costed = {};
};

/// Looks at the candidates of several meshes in the order of what they take at least: first by a
/// bound of a whole family of meshes, of families that it leaves by one of each candidate of groups
/// of them, and without a pipeline by one of each candidate of each mesh, until all others take
/// longer than the `wanted` fastest of those that fit. Which those are does not depend on the
/// number of threads.
class BestFirst {
 public:
  /// `jobs` are those of one job (JobsOf); both outlive it. `wanted` 0: looks at all. After a
  /// request to `stop` Run ends soon, and what it gives is of no use.
  BestFirst(const JobSet& jobs, const ClusterProfile& cluster, size_t wanted, int threads,
            std::stop_token stop = {});

  /// Returns what was looked at, in that order. To be called once.
  std::vector<Judged> Run();

  /// Whether there are any for some of the jobs.
  bool has_workers() const;
  /// The workers of the job of that number; none where none is fit for its precision.
  const std::shared_ptr<const WorkerGroups>& Workers(size_t mesh) const {
    return PoolAt(mesh).workers;
  }
  /// Their cluster, where it is not the one given.
  const std::shared_ptr<const ClusterProfile>& Cluster(size_t mesh) const {
    return PoolAt(mesh).cluster;
  }
  /// Candidates of all jobs, looked at or not.
  int64_t considered() const { return considered_; }
  /// Those among them for which no worker has room, whatever they recompute. Where no others are
  /// left to be reported, some of them are looked at.
  int64_t without_room() const { return without_room_; }
  /// Opens a mesh that has workers. Not for several threads at once, nor during Run.
  MeshSearch& Opened(size_t mesh);
  /// visit(mesh, candidate) for each job with a candidate, and one of them, for whose ranks, which
  /// it asks for, workers have no cores.
  void ForEachWithoutCores(const std::function<void(size_t, const Candidate&)>& visit) const;

 private:
  /// What is known of workers for jobs of one precision.
  struct Pool {
    std::shared_ptr<const ClusterProfile> cluster;
    std::shared_ptr<const WorkerGroups> workers;
    std::unique_ptr<MeshOptions> options;  ///< Where there are workers.
  };
  /// A mesh's candidates without room; the least of them has this many bytes.
  struct LargeChoice {
    double bytes = 0;
    size_t mesh = 0;
    const RankChoice* choice = nullptr;
    bool operator<(const LargeChoice& other) const;  ///< Sooner looked at.
  };
  /// What is known of meshes that have not been looked at.
  struct FamilyState {
    const Pool* pool = nullptr;
    const MeshOptions::Cut* cut = nullptr;
    std::array<RankShare*, 2> shares = {};  ///< Without sequence parallelism, with it.
    double least_seconds = 0;
  };
  /// What was found out about some families.
  struct Counts {
    int64_t considered = 0;
    int64_t without_room = 0;
    std::vector<LargeChoice> large;  ///< Those that are looked at soonest, up to `wanted`.
  };
  /// A mesh that was asked for.
  struct MeshState {
    size_t family = 0;
    std::once_flag opened;
    std::unique_ptr<JobSpec> job;
    std::unique_ptr<MeshSearch> search;
  };
  /// A candidate of a group of meshes, or of one of them, that may have to be looked at.
  struct Waiting {
    double least_seconds = 0;
    size_t mesh = 0;             ///< Or the first of the group.
    MeshGroup* group = nullptr;  ///< Null: of one mesh.
    Candidate candidate;
    bool operator<(const Waiting& other) const;  ///< Later.
  };
  /// What was found by opening families and groups.
  struct Found {
    MeshGroup* group = nullptr;
    std::vector<Candidate> candidates;
  };

  static Pool PoolOf(const std::vector<const JobSpec*>& choices, const ClusterProfile& cluster,
                     bool on_devices);
  const Pool& PoolAt(size_t mesh) const { return *families_[jobs_.FamilyOf(mesh)].pool; }
  void MakeShares();
  /// The resources that MeshOptions::Of takes.
  const ResourceSpec* AskedFor(size_t mesh) const {
    return mesh == 0 ? nullptr : &first_.resources;
  }
  /// Bytes of a GPU, or of a worker.
  static double Room(const JobSpec& job, const Pool& pool);
  /// Bounds families from `begin` to before `end`, and counts their candidates.
  Counts BoundFamilies(size_t begin, size_t end);
  /// The state of a mesh, made where there is none yet.
  MeshState& StateOf(size_t mesh);
  MeshSearch& Opened(size_t number, MeshState& mesh);
  /// The meshes of a family.
  std::vector<std::unique_ptr<MeshGroup>> GroupsOf(size_t family) const;
  /// Takes candidates up to `limit` seconds of families and groups whose bounds are no higher, some
  /// at a time.
  void Open(double limit);
  void JudgeUpTo(double least_seconds);
  /// Takes some of those that wait, up to `most` seconds: adds those whose bounds are all that is
  /// known before they are looked at to judged_, and has the others wait by bounds of their meshes.
  /// False where none is left.
  bool TakeWaiting(double most);
  void Judge(size_t first, double limit);
  /// Some of those without room, until `wanted` infeasible ones are known.
  void JudgeWithoutRoom();
  double Limit() const;

  const JobSet& jobs_;
  const JobSpec first_;  ///< Of them.
  const size_t wanted_;
  const std::stop_token stop_;
  ThreadPool threads_;
  std::map<std::string_view, Pool> pools_;  ///< By precision.
  std::vector<std::unique_ptr<RankShare>> shares_;
  ScheduleCache cache_;
  std::vector<FamilyState> families_;  ///< As those of jobs_.
  std::vector<LargeChoice> large_;     ///< As Counts::large, of all.
  int64_t considered_ = 0;
  int64_t without_room_ = 0;
  /// Families that were not opened, by bounds.
  std::vector<std::pair<double, size_t>> unopened_;
  size_t opened_ = 0;  ///< Of them, those that were.
  std::vector<std::unique_ptr<MeshGroup>> groups_;
  /// What is left of groups, by bounds and first mesh.
  std::map<std::pair<double, size_t>, MeshGroup*> left_;
  std::unordered_map<size_t, MeshState> meshes_;  ///< Those asked for last.
  std::priority_queue<Waiting> waiting_;          ///< The soonest on top.
  std::priority_queue<double> fastest_;           ///< Steps of those that fit, the slowest on top.
  std::vector<Judged> judged_;
};

}  // namespace weft::planner
